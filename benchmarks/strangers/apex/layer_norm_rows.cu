#include "ATen/ATen.h"
#include "ATen/AccumulateType.h"
#include "ATen/cuda/CUDAContext.h"
#include "ATen/cuda/DeviceUtils.cuh"

#include <cuda.h>
#include <cuda_runtime.h>

#include "type_shim.h"

namespace {

template <typename U>
__device__ void updateWelford(const U curr, U& mu, U& sigma2, U& count) {
  count = count + U(1);
  U delta = curr - mu;
  mu = mu + delta / count;
  sigma2 = sigma2 + delta * (curr - mu);
}

template <typename U>
__device__ void mergeWelford(const U muB, const U sigma2B, const U countB, U& mu, U& sigma2, U& count) {
  U delta = muB - mu;
  U total = count + countB;
  if (total > U(0)) {
    mu = mu + delta * (countB / total);
    sigma2 = sigma2 + sigma2B + delta * delta * count * (countB / total);
    count = total;
  }
}

template <typename T>
struct SharedMemory;

template <>
struct SharedMemory<float> {
  __device__ float* getPointer() {
    extern __shared__ float s_float[];
    return s_float;
  }
};

}  // namespace

// One row a block; threadIdx.y counts the warps.
template <typename T, typename U, typename V>
__global__ void applyLayerNorm(V* __restrict__ output_vals, U* __restrict__ mean, U* __restrict__ invvar,
                               const T* __restrict__ vals, const int n1, const int n2, const U epsilon,
                               const V* __restrict__ gamma, const V* __restrict__ beta) {
  SharedMemory<U> shared;
  U* buf = shared.getPointer();
  for (int i1 = blockIdx.y; i1 < n1; i1 += gridDim.y) {
    const T* lvals = vals + i1 * n2;
    V* ovals = output_vals + i1 * n2;
    const int numx = blockDim.x * blockDim.y;
    const int thrx = threadIdx.x + threadIdx.y * blockDim.x;
    U mu = U(0), sigma2 = U(0), count = U(0);
    for (int l = thrx; l < n2; l += numx) updateWelford<U>(static_cast<U>(lvals[l]), mu, sigma2, count);
    for (int l = 16; l > 0; l /= 2) {
      U muB = WARP_SHFL_XOR(mu, l);
      U sigma2B = WARP_SHFL_XOR(sigma2, l);
      U countB = WARP_SHFL_XOR(count, l);
      mergeWelford<U>(muB, sigma2B, countB, mu, sigma2, count);
    }
    if (threadIdx.x == 0) {
      buf[3 * threadIdx.y] = mu;
      buf[3 * threadIdx.y + 1] = sigma2;
      buf[3 * threadIdx.y + 2] = count;
    }
    __syncthreads();
    mu = buf[0], sigma2 = buf[1], count = buf[2];
    for (int w = 1; w < blockDim.y; ++w)
      mergeWelford<U>(buf[3 * w], buf[3 * w + 1], buf[3 * w + 2], mu, sigma2, count);
    const U c_invvar = rsqrt(sigma2 / U(n2) + epsilon);
    for (int i = thrx; i < n2; i += numx) {
      const U normed = c_invvar * (static_cast<U>(lvals[i]) - mu);
      ovals[i] = static_cast<V>(static_cast<U>(gamma[i]) * normed + static_cast<U>(beta[i]));
    }
    if (threadIdx.x == 0 && threadIdx.y == 0) {
      mean[i1] = mu;
      invvar[i1] = c_invvar;
    }
    __syncthreads();
  }
}

template <typename T, typename U, typename V = T>
void HostApplyLayerNorm(V* output, U* mean, U* invvar, const T* input, int n1, int n2, double epsilon,
                        const V* gamma, const V* beta) {
  auto stream = at::cuda::getCurrentCUDAStream().stream();
  const dim3 threads(32, 4, 1);
  const uint64_t maxGridY = at::cuda::getCurrentDeviceProperties()->maxGridSize[1];
  const dim3 blocks(1, std::min((uint64_t)n1, maxGridY), 1);
  int nshared = threads.y * 3 * sizeof(U);
  applyLayerNorm<<<blocks, threads, nshared, stream>>>(output, mean, invvar, input, n1, n2, U(epsilon),
                                                       gamma, beta);
}

void cuda_layer_norm(at::Tensor* output, at::Tensor* mean, at::Tensor* invvar, at::Tensor* input, int n1,
                     int n2, at::Tensor* gamma, at::Tensor* beta, double epsilon) {
  using namespace at;
  DISPATCH_FLOAT_HALF_AND_BFLOAT(
      input->scalar_type(), 0, "applyLayerNorm",
      using accscalar_t = at::acc_type<scalar_t_0, true>;
      HostApplyLayerNorm<scalar_t_0, accscalar_t>(
          output->DATA_PTR<scalar_t_0>(), mean->DATA_PTR<accscalar_t>(), invvar->DATA_PTR<accscalar_t>(),
          input->DATA_PTR<scalar_t_0>(), n1, n2, epsilon, gamma->DATA_PTR<scalar_t_0>(),
          beta->DATA_PTR<scalar_t_0>());)
}
