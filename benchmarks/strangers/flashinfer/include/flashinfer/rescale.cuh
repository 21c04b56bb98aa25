#ifndef FLASHINFER_RESCALE_CUH_
#define FLASHINFER_RESCALE_CUH_

#include <algorithm>
#include <cstdint>

#include "math.cuh"
#include "utils.cuh"

namespace flashinfer {

namespace sampling {

/*! Softmax of a row's logits over its temperature; a temperature of its own where the array is given. */
template <uint32_t BLOCK_THREADS, typename DType>
__global__ void OnlineSoftmaxKernel(DType* logits, DType* output, DType* temperature_arr,
                                    DType temperature_val, uint32_t d) {
  const uint32_t bx = blockIdx.x, tx = threadIdx.x;
  __shared__ float shared_max[BLOCK_THREADS / 32], shared_sum[BLOCK_THREADS / 32];
  const float temperature = temperature_arr == nullptr ? temperature_val : temperature_arr[bx];
  const float scale = math::log2e / temperature;
  float row_max = -3.0e38f;
  for (uint32_t i = tx; i < d; i += BLOCK_THREADS) row_max = max(row_max, float(logits[bx * d + i]));
#pragma unroll
  for (uint32_t offset = 16; offset > 0; offset /= 2)
    row_max = max(row_max, math::shfl_xor_sync(row_max, offset));
  if (tx % 32 == 0) shared_max[tx / 32] = row_max;
  __syncthreads();
  for (uint32_t w = 0; w < BLOCK_THREADS / 32; ++w) row_max = max(row_max, shared_max[w]);
  float denom = 0.f;
  for (uint32_t i = tx; i < d; i += BLOCK_THREADS) denom += exp2f((logits[bx * d + i] - row_max) * scale);
#pragma unroll
  for (uint32_t offset = 16; offset > 0; offset /= 2) denom += math::shfl_xor_sync(denom, offset);
  if (tx % 32 == 0) shared_sum[tx / 32] = denom;
  __syncthreads();
  denom = 0.f;
  for (uint32_t w = 0; w < BLOCK_THREADS / 32; ++w) denom += shared_sum[w];
  for (uint32_t i = tx; i < d; i += BLOCK_THREADS)
    output[bx * d + i] = exp2f((logits[bx * d + i] - row_max) * scale) / denom;
}

template <typename DType>
cudaError_t OnlineSoftmax(DType* logits, DType* output, uint32_t batch_size, uint32_t d,
                          DType* temperature_arr, DType temperature_val, cudaStream_t stream = 0) {
  constexpr uint32_t BLOCK_THREADS = 512;
  dim3 nblks(batch_size);
  dim3 nthrs(BLOCK_THREADS);
  void* args[] = {&logits, &output, &temperature_arr, &temperature_val, &d};
  auto kernel = OnlineSoftmaxKernel<BLOCK_THREADS, DType>;
  FLASHINFER_CUDA_CALL(cudaLaunchKernel((void*)kernel, nblks, nthrs, args, 0, stream));
  return cudaSuccess;
}

}  // namespace sampling

}  // namespace flashinfer

#endif  // FLASHINFER_RESCALE_CUH_
