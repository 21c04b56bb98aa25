#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torch/all.h>

#include <cstdint>

#define MUST_LIE_DENSE_ON_GPU(tensor)                                      \
  do {                                                                     \
    TORCH_CHECK((tensor).is_cuda(), #tensor " lies off the GPU");          \
    TORCH_CHECK((tensor).is_contiguous(), #tensor " is a view with gaps"); \
  } while (0)

// Calls what follows with `short_t` as the float of 16 bits that a tensor holds.
#define WITH_SHORT_FLOAT(tensor, short_t, ...)                               \
  do {                                                                       \
    const auto held = (tensor).scalar_type();                                \
    if (held == at::ScalarType::BFloat16) {                                  \
      using short_t = nv_bfloat16;                                           \
      __VA_ARGS__();                                                         \
    } else if (held == at::ScalarType::Half) {                               \
      using short_t = nv_half;                                               \
      __VA_ARGS__();                                                         \
    } else {                                                                 \
      TORCH_CHECK(false, #tensor " holds ", held, ", no float of 16 bits"); \
    }                                                                        \
  } while (0)

constexpr int kTroop = 32;

// The greatest value that a troop of 32 threads brings.
__device__ __forceinline__ float troop_peak(float brought) {
#pragma unroll
  for (int apart = 1; apart < kTroop; apart += apart) {
    const float theirs = __shfl_xor_sync(~0u, brought, apart);
    brought = theirs > brought ? theirs : brought;
  }
  return brought;
}
