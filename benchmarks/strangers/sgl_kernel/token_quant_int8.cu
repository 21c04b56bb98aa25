#include <ATen/cuda/CUDAContext.h>

#include <cmath>
#include <cuda/std/limits>

#include "utils.h"

static constexpr int kWarpsPerBlock = 8;

// One warp a token: the largest magnitude becomes 127.
template <typename T>
__global__ void token_quant_int8_kernel(
    const T* __restrict__ input,
    int8_t* __restrict__ output_q,
    float* __restrict__ output_s,
    const int64_t hidden_dim,
    const int64_t num_tokens) {
  const int warp_id = threadIdx.x / kWarp;
  const int lane_id = threadIdx.x % kWarp;
  const int64_t token_id = blockIdx.x * kWarpsPerBlock + warp_id;
  if (token_id >= num_tokens) return;

  const T* token_input = input + token_id * hidden_dim;
  int8_t* token_output = output_q + token_id * hidden_dim;

  float max_value = 0.0f;
  for (int64_t i = lane_id; i < hidden_dim; i += kWarp) {
    max_value = fmaxf(max_value, fabsf(static_cast<float>(token_input[i])));
  }
  max_value = warp_max(max_value);
  const float scale = fmaxf(max_value / 127.0f, cuda::std::numeric_limits<float>::min());
  if (lane_id == 0) output_s[token_id] = scale;

  for (int64_t i = lane_id; i < hidden_dim; i += kWarp) {
    const float q = rintf(static_cast<float>(token_input[i]) / scale);
    token_output[i] = static_cast<int8_t>(fminf(fmaxf(q, -127.0f), 127.0f));
  }
}

void sgl_token_quant_int8(torch::Tensor input, torch::Tensor output_q, torch::Tensor output_s) {
  CHECK_INPUT(input);
  CHECK_INPUT(output_q);
  CHECK_INPUT(output_s);
  const int64_t num_tokens = input.size(0);
  const int64_t hidden_dim = input.size(1);
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();

  DISPATCH_DTYPE_TO_CTYPE_FP16(input.scalar_type(), scalar_t, [&] {
    constexpr int THREADS = kWarpsPerBlock * kWarp;
    dim3 grid((num_tokens + kWarpsPerBlock - 1) / kWarpsPerBlock);
    dim3 block(THREADS);
    token_quant_int8_kernel<scalar_t><<<grid, block, 0, stream>>>(
        static_cast<scalar_t*>(input.data_ptr()),
        static_cast<int8_t*>(output_q.data_ptr()),
        static_cast<float*>(output_s.data_ptr()),
        hidden_dim,
        num_tokens);
    return true;
  });
}
