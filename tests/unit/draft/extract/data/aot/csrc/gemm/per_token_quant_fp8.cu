#include <ATen/cuda/CUDAContext.h>
#include <c10/util/Float8_e4m3fn.h>

#include <cmath>

#include "op_utils.h"
#include "packed.cuh"

using FP8_TYPE = c10::Float8_e4m3fn;
#ifndef USE_ROCM
constexpr float FP8_LARGEST = 448.0f;
#else
constexpr float FP8_LARGEST = 224.0f;
#endif

static constexpr int kTokensPerBlock = 8;

// Many tokens: a warp takes a row.
template <typename T, typename DST_T, int kTokens = 8, int kVecSize = 16>
__global__ void quant_warp_kernel(
    const T* __restrict__ input, DST_T* __restrict__ output_q, float* __restrict__ output_s,
    const int64_t hidden_dim, const int64_t num_tokens) {
  const int token = blockIdx.x * kTokens + threadIdx.x / WARP_THREADS;
  const int lane = threadIdx.x % WARP_THREADS;
  if (token >= num_tokens) return;

  const T* row = input + token * hidden_dim;
  DST_T* out = output_q + token * hidden_dim;
  const int vecs = hidden_dim / kVecSize;
  float largest = 0.0f;
  for (int i = lane; i < vecs; i += WARP_THREADS) {
    packed::Pack<T, kVecSize> in;
    in.load(row + i * kVecSize);
#pragma unroll
    for (int j = 0; j < kVecSize; ++j) largest = fmaxf(largest, fabsf(static_cast<float>(in[j])));
  }
  largest = warp_max(largest);
  const float scale = largest / FP8_LARGEST;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  if (lane == 0) output_s[token] = scale;
  for (int i = lane; i < vecs; i += WARP_THREADS) {
    packed::Pack<T, kVecSize> in;
    packed::Pack<DST_T, kVecSize> q;
    in.load(row + i * kVecSize);
#pragma unroll
    for (int j = 0; j < kVecSize; ++j) {
      const float value = fminf(fmaxf(static_cast<float>(in[j]) * inverse, -FP8_LARGEST), FP8_LARGEST);
#ifdef USE_ROCM
      q[j] = c10::Float8_e4m3fnuz(value, c10::Float8_e4m3fnuz::from_bits());
#else
      q[j] = static_cast<DST_T>(value);
#endif
    }
    q.store(out + i * kVecSize);
  }
}

// Few tokens: a block takes a row.
template <typename T, typename DST_T, int kVecSize = 16>
__global__ void quant_block_kernel(
    const T* __restrict__ input, DST_T* __restrict__ output_q, float* __restrict__ output_s,
    const int64_t hidden_dim, const int64_t num_tokens) {
  const int64_t token = blockIdx.x;
  if (token >= num_tokens) return;
  const T* row = input + token * hidden_dim;
  DST_T* out = output_q + token * hidden_dim;
  float largest = 0.0f;
  for (int i = threadIdx.x; i < hidden_dim; i += blockDim.x) {
    largest = fmaxf(largest, fabsf(static_cast<float>(row[i])));
  }
  largest = block_max(largest);
  const float scale = largest / FP8_LARGEST;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  if (threadIdx.x == 0) output_s[token] = scale;
  for (int i = threadIdx.x; i < hidden_dim; i += blockDim.x) {
    out[i] = static_cast<DST_T>(static_cast<float>(row[i]) * inverse);
  }
}

void per_token_quant_fp8(torch::Tensor input, torch::Tensor output_q, torch::Tensor output_s) {
  REQUIRE_INPUT(input);
  const auto sizes = input.sizes();
  const int64_t num_tokens = sizes[0];
  const int64_t hidden_dim = sizes[1];
  TORCH_CHECK(hidden_dim % 8 == 0, "hidden_dim has to be a multiple of 8, got ", hidden_dim);
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const int sm_count = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const bool many = num_tokens >= sm_count * 2 * kTokensPerBlock;
  DISPATCH_HALF_TYPES(input.scalar_type(), scalar_t, [&] {
    if (many) {
      constexpr int THREADS = kTokensPerBlock * WARP_THREADS;
      dim3 grid((num_tokens + kTokensPerBlock - 1) / kTokensPerBlock);
      dim3 block(THREADS);
      quant_warp_kernel<scalar_t, FP8_TYPE, kTokensPerBlock, 16><<<grid, block, 0, stream>>>(
          static_cast<const scalar_t*>(input.data_ptr()),
          static_cast<FP8_TYPE*>(output_q.data_ptr()),
          static_cast<float*>(output_s.data_ptr()), hidden_dim, num_tokens);
    } else {
      constexpr int THREADS = 256;
      dim3 rows(num_tokens);
      quant_block_kernel<scalar_t, FP8_TYPE, 8><<<rows, THREADS, 0, stream>>>(
          static_cast<const scalar_t*>(input.data_ptr()),
          static_cast<FP8_TYPE*>(output_q.data_ptr()),
          static_cast<float*>(output_s.data_ptr()), hidden_dim, num_tokens);
    }
    return true;
  });
}
