#include <torch/all.h>

#include "utils.h"

namespace sgl {

// Keeps the k largest sigmoids of a row, one block a row.
template <int TPB>
__launch_bounds__(TPB) __global__ void topk_sigmoid_kernel(
    const float* gating,      // [num_tokens, num_experts]
    float* topk_weights,      // [num_tokens, topk]
    int32_t* topk_indices,    // [num_tokens, topk]
    const int num_experts,
    const int topk,
    const bool renormalize) {
  __shared__ float best_value[TPB];
  __shared__ int best_index[TPB];
  const int row = blockIdx.x;
  const float* scores = gating + row * num_experts;
  float total = 0.f;
  for (int k = 0; k < topk; ++k) {
    float value = -1.f;
    int index = num_experts;
    for (int e = threadIdx.x; e < num_experts; e += TPB) {
      bool taken = false;
      for (int j = 0; j < k; ++j) taken = taken || topk_indices[row * topk + j] == e;
      const float s = 1.f / (1.f + expf(-scores[e]));
      if (!taken && s > value) {
        value = s;
        index = e;
      }
    }
    best_value[threadIdx.x] = value;
    best_index[threadIdx.x] = index;
    __syncthreads();
    for (int half = TPB / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) {
        const float other = best_value[threadIdx.x + half];
        const int who = best_index[threadIdx.x + half];
        const bool better = other > best_value[threadIdx.x] ||
                            (other == best_value[threadIdx.x] && who < best_index[threadIdx.x]);
        if (better) {
          best_value[threadIdx.x] = other;
          best_index[threadIdx.x] = who;
        }
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      topk_weights[row * topk + k] = best_value[0];
      topk_indices[row * topk + k] = best_index[0];
    }
    total += best_value[0];
    __syncthreads();
  }
  if (renormalize && threadIdx.x == 0)
    for (int k = 0; k < topk; ++k) topk_weights[row * topk + k] /= total;
}

template <int TPB>
void launch(const float* gating, float* weights, int32_t* indices, int num_tokens, int num_experts,
            int topk, bool renormalize, cudaStream_t stream) {
  topk_sigmoid_kernel<TPB><<<num_tokens, TPB, 0, stream>>>(
      gating, weights, indices, num_experts, topk, renormalize);
}

}  // namespace sgl

void topk_sigmoid(torch::Tensor& topk_weights, torch::Tensor& topk_indices, torch::Tensor& gating,
                  bool renormalize) {
  CHECK_INPUT(gating);
  const int num_experts = static_cast<int>(gating.size(-1));
  const int num_tokens = static_cast<int>(gating.numel() / num_experts);
  const int topk = static_cast<int>(topk_weights.size(-1));
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  if (num_experts <= 64)
    sgl::launch<64>(gating.data_ptr<float>(), topk_weights.data_ptr<float>(),
                    topk_indices.data_ptr<int32_t>(), num_tokens, num_experts, topk, renormalize, stream);
  else
    sgl::launch<256>(gating.data_ptr<float>(), topk_weights.data_ptr<float>(),
                     topk_indices.data_ptr<int32_t>(), num_tokens, num_experts, topk, renormalize, stream);
}
