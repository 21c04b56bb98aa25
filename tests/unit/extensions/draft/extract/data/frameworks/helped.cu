#include <torch/all.h>
#include <c10/cuda/CUDAGuard.h>
#ifndef USE_ROCM
  #include <cub/cub.cuh>
  #if CUB_VERSION >= 200800
    #include <cuda/std/functional>
using AddOp = cuda::std::plus<>;
  #else
using AddOp = cub::Sum;
  #endif
#else
  #include <hipcub/hipcub.hpp>
namespace cub = hipcub;
#endif
#include <cstdint>

template <typename scalar_t>
__global__ void sum_squares_kernel(float* __restrict__ out, const scalar_t* __restrict__ x,
                                   const int64_t width) {
  using BlockReduce = cub::BlockReduce<float, 1024>;
  __shared__ typename BlockReduce::TempStorage storage;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float value = static_cast<float>(x[blockIdx.x * width + i]);
    sum += value * value;
  }
  sum = BlockReduce(storage).Reduce(sum, AddOp{}, blockDim.x);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

void sum_squares(torch::Tensor& out, torch::Tensor& x) {
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  sum_squares_kernel<c10::BFloat16><<<x.size(0), 256>>>(
      out.data_ptr<float>(), x.data_ptr<c10::BFloat16>(), x.size(1));
}
