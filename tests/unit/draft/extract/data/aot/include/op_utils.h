#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <torch/all.h>

#include <sstream>
#include <string>

#ifdef USE_ROCM
#include <hip/hip_runtime.h>
#define SHFL_XOR(value, lanes) __shfl_xor(value, lanes)
#else
#define SHFL_XOR(value, lanes) __shfl_xor_sync(0xffffffffu, value, lanes)
#endif

#define REQUIRE_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " has to be on a GPU")
#define REQUIRE_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " has to be contiguous")
#define REQUIRE_INPUT(x) \
  REQUIRE_CUDA(x);       \
  REQUIRE_CONTIGUOUS(x)

#define CASE_HALF(c_type, ...)     \
  case at::ScalarType::Half: {     \
    using c_type = nv_half;        \
    return __VA_ARGS__();          \
  }

#define CASE_BFLOAT16(c_type, ...) \
  case at::ScalarType::BFloat16: { \
    using c_type = nv_bfloat16;    \
    return __VA_ARGS__();          \
  }

// Runs a lambda with `c_type` set to the type of a tensor's elements.
#define DISPATCH_HALF_TYPES(dtype, c_type, ...)                       \
  [&]() -> bool {                                                     \
    switch (dtype) {                                                  \
      CASE_HALF(c_type, __VA_ARGS__)                                  \
      CASE_BFLOAT16(c_type, __VA_ARGS__)                              \
      default:                                                        \
        std::ostringstream oss;                                       \
        oss << __PRETTY_FUNCTION__ << " has no kernel for " << dtype; \
        TORCH_CHECK(false, oss.str());                                \
        return false;                                                 \
    }                                                                 \
  }()

constexpr int WARP_THREADS = 32;

template <typename T>
__host__ __device__ __forceinline__ T divided_up(T a, T b) {
  return (a + b - 1) / b;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int lanes = WARP_THREADS / 2; lanes > 0; lanes /= 2) value = fmaxf(value, SHFL_XOR(value, lanes));
  return value;
}

// The largest value of a block, for all of its threads.
__device__ __forceinline__ float block_max(float value) {
  __shared__ float warps[WARP_THREADS];
  const int lane = threadIdx.x % WARP_THREADS;
  value = warp_max(value);
  if (lane == 0) warps[threadIdx.x / WARP_THREADS] = value;
  __syncthreads();
  value = lane < blockDim.x / WARP_THREADS ? warps[lane] : 0.0f;
  return warp_max(value);
}

inline int sm_version() {
  int device = -1, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major;
}
