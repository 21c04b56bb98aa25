#include <cutlass/util/packed_stride.hpp>
#include <cstdint>

struct Params {
  using index_t = int64_t;
  const float* __restrict__ x;
  float* __restrict__ out;
  index_t row_stride;
  uint columns;
};

__global__ void double_kernel(const Params params) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const Params::index_t start = blockIdx.x * params.row_stride;
  for (uint c = threadIdx.x; c < params.columns; c += blockDim.x)
    params.out[start + c] = 2.0f * params.x[start + c];
  cudaTriggerProgrammaticLaunchCompletion();
}

void run(Params params, int rows, cudaStream_t stream) {
  double_kernel<<<rows, 128, 0, stream>>>(params);
}
