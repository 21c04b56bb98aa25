#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "op_utils.h"

#define FILL_VEC 4

#define DISPATCH_INDEX_TYPES(dtype, ...)           \
  [&] {                                            \
    if (dtype == at::ScalarType::Int) {            \
      using scalar_t = int32_t;                    \
      return __VA_ARGS__();                        \
    }                                              \
    using scalar_t = int64_t;                      \
    return __VA_ARGS__();                          \
  }()

template <typename scalar_t>
__global__ void scatter_tokens_kernel(
    const scalar_t* __restrict__ topk_ids, int32_t* __restrict__ sorted_token_ids,
    int32_t* __restrict__ cumsum, size_t numel) {
  const size_t first = blockIdx.x * blockDim.x + threadIdx.x;
  for (size_t i = first; i < numel; i += blockDim.x * gridDim.x) {
    const int32_t expert = topk_ids[i];
    sorted_token_ids[atomicAdd(&cumsum[expert], 1)] = i;
  }
}

template <typename scalar_t>
__global__ void align_kernel(
    const scalar_t* __restrict__ topk_ids, int32_t* __restrict__ sorted_token_ids,
    int32_t* __restrict__ expert_ids, int32_t* __restrict__ total_after_pad, int32_t num_experts,
    int32_t block_size, size_t numel, int32_t* __restrict__ cumsum, int32_t max_padded) {
  // the second block fills, the first counts
  if (blockIdx.x == 1) {
    for (int i = threadIdx.x * FILL_VEC; i < max_padded; i += blockDim.x * FILL_VEC) {
      *reinterpret_cast<int4*>(sorted_token_ids + i) = make_int4(numel, numel, numel, numel);
    }
    return;
  }
  extern __shared__ int32_t shared_counts[];
  for (int i = threadIdx.x; i < num_experts; i += blockDim.x) shared_counts[i] = 0;
  __syncthreads();
  for (size_t i = threadIdx.x; i < numel; i += blockDim.x) atomicAdd(&shared_counts[topk_ids[i]], 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    cumsum[0] = 0;
    for (int e = 0; e < num_experts; ++e) {
      cumsum[e + 1] = cumsum[e] + divided_up(shared_counts[e], block_size) * block_size;
    }
    *total_after_pad = cumsum[num_experts];
  }
  __syncthreads();
  for (int e = threadIdx.x; e < num_experts; e += blockDim.x) {
    for (int i = cumsum[e]; i < cumsum[e + 1]; i += block_size) expert_ids[i / block_size] = e;
  }
}

void moe_align(
    torch::Tensor topk_ids, int64_t num_experts, int64_t block_size, torch::Tensor sorted_token_ids,
    torch::Tensor experts_ids, torch::Tensor total_after_pad, torch::Tensor cumsum_buffer) {
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  int threads = 1024;
  threads = ((threads + WARP_THREADS - 1) / WARP_THREADS) * WARP_THREADS;
  DISPATCH_INDEX_TYPES(topk_ids.scalar_type(), [&] {
    const size_t shared_bytes = num_experts * sizeof(int32_t);
    const int32_t padded = sorted_token_ids.size(0);
    auto align = align_kernel<scalar_t>;
    align<<<2, threads, shared_bytes, stream>>>(
        topk_ids.data_ptr<scalar_t>(), sorted_token_ids.data_ptr<int32_t>(),
        experts_ids.data_ptr<int32_t>(), total_after_pad.data_ptr<int32_t>(), num_experts,
        block_size, topk_ids.numel(), cumsum_buffer.data_ptr<int32_t>(), padded);

    const int block_threads = std::min(256, threads);
    const int blocks = (topk_ids.numel() + block_threads - 1) / block_threads;
    scatter_tokens_kernel<scalar_t><<<std::min(blocks, 65535), block_threads, 0, stream>>>(
        topk_ids.data_ptr<scalar_t>(), sorted_token_ids.data_ptr<int32_t>(),
        cumsum_buffer.data_ptr<int32_t>(), topk_ids.numel());
  });
}
