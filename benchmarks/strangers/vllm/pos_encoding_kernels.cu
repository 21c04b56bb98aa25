#include <torch/all.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "dispatch_utils.h"

namespace vllm {

template <typename scalar_t, bool IS_NEOX>
inline __device__ void rotate_pair(scalar_t* __restrict__ arr,
                                   const scalar_t* __restrict__ cos_ptr,
                                   const scalar_t* __restrict__ sin_ptr,
                                   int pair, int half_dim) {
  const int x_index = IS_NEOX ? pair : 2 * pair;
  const int y_index = IS_NEOX ? half_dim + pair : 2 * pair + 1;
  const float c = (float)cos_ptr[pair], s = (float)sin_ptr[pair];
  const float x = (float)arr[x_index], y = (float)arr[y_index];
  arr[x_index] = (scalar_t)(x * c - y * s);
  arr[y_index] = (scalar_t)(y * c + x * s);
}

template <typename scalar_t, bool IS_NEOX>
__global__ void rotate_query_kernel(
    const int64_t* __restrict__ positions,        // [num_tokens]
    scalar_t* __restrict__ query,                 // [num_tokens, num_heads, head_size]
    const scalar_t* __restrict__ cos_sin_cache,   // [max_position, rot_dim]
    const int rot_dim, const int64_t query_stride, const int num_heads,
    const int head_size) {
  const int token_idx = blockIdx.x;
  const scalar_t* cache_ptr = cos_sin_cache + positions[token_idx] * rot_dim;
  const int half_dim = rot_dim / 2;
  for (int i = threadIdx.x; i < num_heads * half_dim; i += blockDim.x) {
    const int head_idx = i / half_dim;
    const int64_t token_head = token_idx * query_stride + head_idx * head_size;
    rotate_pair<scalar_t, IS_NEOX>(query + token_head, cache_ptr,
                                   cache_ptr + half_dim, i % half_dim, half_dim);
  }
}

}  // namespace vllm

void rotate_query(torch::Tensor& positions,  // [num_tokens]
                  torch::Tensor& query,      // [num_tokens, num_heads * head_size]
                  int64_t head_size,
                  torch::Tensor& cos_sin_cache,  // [max_position, rot_dim]
                  bool is_neox) {
  int64_t num_tokens = positions.numel();
  int rot_dim = cos_sin_cache.size(1);
  int num_heads = query.size(-1) / head_size;
  int64_t query_stride = query.stride(-2);

  dim3 grid(num_tokens);
  dim3 block(std::min<int64_t>(num_heads * rot_dim / 2, 512));
  const at::cuda::OptionalCUDAGuard device_guard(device_of(query));
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  VLLM_DISPATCH_FLOATING_TYPES(query.scalar_type(), "rotate_query", [&] {
    if (is_neox) {
      vllm::rotate_query_kernel<scalar_t, true><<<grid, block, 0, stream>>>(
          positions.data_ptr<int64_t>(), query.data_ptr<scalar_t>(),
          cos_sin_cache.data_ptr<scalar_t>(), rot_dim, query_stride, num_heads,
          head_size);
    } else {
      vllm::rotate_query_kernel<scalar_t, false><<<grid, block, 0, stream>>>(
          positions.data_ptr<int64_t>(), query.data_ptr<scalar_t>(),
          cos_sin_cache.data_ptr<scalar_t>(), rot_dim, query_stride, num_heads,
          head_size);
    }
  });
}
