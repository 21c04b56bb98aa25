#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torch/all.h>

#include <cstdint>

#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) \
  CHECK_CUDA(x);       \
  CHECK_CONTIGUOUS(x)

#define DISPATCH_DTYPE_TO_CTYPE_FP16(dtype, c_type, ...)                             \
  [&]() -> bool {                                                                    \
    switch (dtype) {                                                                 \
      case at::ScalarType::Half: {                                                   \
        using c_type = nv_half;                                                      \
        return __VA_ARGS__();                                                        \
      }                                                                              \
      case at::ScalarType::BFloat16: {                                               \
        using c_type = nv_bfloat16;                                                  \
        return __VA_ARGS__();                                                        \
      }                                                                              \
      default:                                                                       \
        TORCH_CHECK(false, __PRETTY_FUNCTION__, " failed to dispatch data type");    \
        return false;                                                                \
    }                                                                                \
  }()

constexpr uint32_t kWarp = 32;

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask >>= 1)
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, mask));
  return value;
}
