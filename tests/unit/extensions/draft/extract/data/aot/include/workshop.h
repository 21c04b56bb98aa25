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
#define FROM_PARTNER(mine, apart) __shfl_xor(mine, apart)
#else
#define FROM_PARTNER(mine, apart) __shfl_xor_sync(0xffffffffu, mine, apart)
#endif

#define ON_DEVICE(sheet) TORCH_CHECK(sheet.is_cuda(), "the workshop weaves on a GPU, and not " #sheet)
#define WITHOUT_GAPS(sheet) TORCH_CHECK(sheet.is_contiguous(), #sheet " has gaps between its rows")
#define WOVEN(sheet) \
  ON_DEVICE(sheet);  \
  WITHOUT_GAPS(sheet)

#define YARN_OF(label, yarn, spun, ...) \
  case at::ScalarType::label: {         \
    using yarn = spun;                  \
    return __VA_ARGS__();               \
  }

#define THIN_YARN(yarn, ...) YARN_OF(Half, yarn, nv_half, __VA_ARGS__)
#define ROUGH_YARN(yarn, ...) YARN_OF(BFloat16, yarn, nv_bfloat16, __VA_ARGS__)

// Calls what follows where `yarn` names the type that a sheet is woven of.
#define WEAVE_SHORT_YARNS(woven_of, yarn, ...)                       \
  [&]() -> bool {                                                    \
    switch (woven_of) {                                              \
      THIN_YARN(yarn, __VA_ARGS__)                                   \
      ROUGH_YARN(yarn, __VA_ARGS__)                                  \
      default:                                                       \
        std::ostringstream complaint;                                \
        complaint << "nobody here spins " << woven_of << ", line ";  \
        complaint << __LINE__;                                       \
        TORCH_CHECK(false, complaint.str());                         \
        return false;                                                \
    }                                                                \
  }()

constexpr int WARP_THREADS = 32;

// As many boxes of a size as hold everything.
template <typename N>
__host__ __device__ __forceinline__ N boxes_for(N things, N box) {
  return things / box + (things % box != 0 ? 1 : 0);
}

// Both ends of what a warp has, for each of its threads.
struct Reach {
  float low, high;

  __device__ __forceinline__ void take(float one) {
    low = fminf(low, one);
    high = fmaxf(high, one);
  }

  __device__ __forceinline__ void join(float lower, float higher) {
    low = fminf(low, lower);
    high = fmaxf(high, higher);
  }
};

__device__ __forceinline__ Reach reach_of_warp(Reach mine) {
#pragma unroll
  for (int apart = 1; apart < WARP_THREADS; apart *= 2) {
    mine.join(FROM_PARTNER(mine.low, apart), FROM_PARTNER(mine.high, apart));
  }
  return mine;
}

// Likewise of a whole block: the warps meet in shared memory.
__device__ __forceinline__ Reach reach_of_block(Reach mine) {
  __shared__ Reach meeting[WARP_THREADS];
  mine = reach_of_warp(mine);
  if (threadIdx.x % WARP_THREADS == 0) meeting[threadIdx.x / WARP_THREADS] = mine;
  __syncthreads();
  for (int other = 0; other * WARP_THREADS < blockDim.x; ++other) {
    mine.join(meeting[other].low, meeting[other].high);
  }
  return mine;
}

inline int looms_of_this_machine() {
  int which = 0, looms = 1;
  if (cudaGetDevice(&which) == cudaSuccess) {
    cudaDeviceGetAttribute(&looms, cudaDevAttrMultiProcessorCount, which);
  }
  return looms;
}
