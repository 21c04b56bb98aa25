#include <torch/cuda.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "cub_helpers.h"
#include "dispatch_utils.h"

namespace vllm {

// The residual takes the sum, the input its norm; both in place.
template <typename scalar_t>
__global__ void add_residual_rms_norm_kernel(
    scalar_t* __restrict__ input,         // [..., hidden_size]
    scalar_t* __restrict__ residual,      // [..., hidden_size]
    const scalar_t* __restrict__ weight,  // [hidden_size]
    const float epsilon, const int num_tokens, const int hidden_size) {
  __shared__ float s_inverse;
  float variance = 0.0f;
  for (int idx = threadIdx.x; idx < hidden_size; idx += blockDim.x) {
    const float z = (float)input[blockIdx.x * hidden_size + idx] +
                    (float)residual[blockIdx.x * hidden_size + idx];
    variance += z * z;
    residual[blockIdx.x * hidden_size + idx] = (scalar_t)z;
  }

  using BlockReduce = cub::BlockReduce<float, 1024>;
  __shared__ typename BlockReduce::TempStorage reduceStore;
  variance = BlockReduce(reduceStore).Reduce(variance, CubAddOp{}, blockDim.x);

  if (threadIdx.x == 0) {
    s_inverse = rsqrtf(variance / hidden_size + epsilon);
  }
  __syncthreads();

  for (int idx = threadIdx.x; idx < hidden_size; idx += blockDim.x) {
    const float x = (float)residual[blockIdx.x * hidden_size + idx];
    input[blockIdx.x * hidden_size + idx] = (scalar_t)(x * s_inverse * (float)weight[idx]);
  }
}

}  // namespace vllm

#define LAUNCH_ADD_RESIDUAL_RMS_NORM()                                         \
  VLLM_DISPATCH_FLOATING_TYPES(                                                \
      input.scalar_type(), "add_residual_rms_norm_kernel", [&] {               \
        vllm::add_residual_rms_norm_kernel<scalar_t><<<grid, block, 0, stream>>>( \
            input.data_ptr<scalar_t>(), residual.data_ptr<scalar_t>(),         \
            weight.data_ptr<scalar_t>(), epsilon, num_tokens, hidden_size);    \
      });

void add_residual_rms_norm(torch::Tensor& input,     // [..., hidden_size]
                           torch::Tensor& residual,  // [..., hidden_size]
                           torch::Tensor& weight,    // [hidden_size]
                           double epsilon) {
  TORCH_CHECK(input.is_contiguous());
  int hidden_size = input.size(-1);
  int num_tokens = input.numel() / hidden_size;

  dim3 grid(num_tokens);
  // Small batches want wide blocks, large ones more blocks a multiprocessor.
  const int max_block_size = (num_tokens < 256) ? 1024 : 256;
  dim3 block(std::min(hidden_size, max_block_size));
  const at::cuda::OptionalCUDAGuard device_guard(device_of(input));
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  LAUNCH_ADD_RESIDUAL_RMS_NORM();
}
