#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "launch_config.h"

namespace cg = cooperative_groups;

namespace ops {

struct Limits {
  float low;
  float high;
};

template <typename T>
__device__ __forceinline__ T clamped(T x, Limits limits) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, int>, "float or int");
  if constexpr (std::is_same_v<T, float>) {
    if (x != x) return std::numeric_limits<float>::lowest();
  }
  return std::max(static_cast<T>(limits.low), std::min(x, static_cast<T>(limits.high)));
}

template <typename T, int ITEMS>
__global__ void clamp_kernel(T* out, const T* in, Limits limits, size_t n) {
  const size_t first = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * ITEMS;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (first + i < n) out[first + i] = clamped(in[first + i], limits);
  }
}

}  // namespace ops

namespace {

template <typename T>
cudaError_t run(T* out, const T* in, float low, float high, size_t n, cudaStream_t stream) {
  constexpr int ITEMS = 4;
  constexpr int THREADS = 128;
  ops::Limits limits{low, high};
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3((n + ITEMS * THREADS - 1) / (ITEMS * THREADS));
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = 0;
  config.stream = stream;
  return launch::with_attributes(config, attribute, [&] {
    return cudaLaunchKernelEx(&config, ops::clamp_kernel<T, ITEMS>, out, in, limits, n);
  });
}

}  // namespace

extern "C" cudaError_t clamp_float(float* out, const float* in, float low, float high, size_t n, cudaStream_t stream) {
  return run<float>(out, in, low, high, n, stream);
}
