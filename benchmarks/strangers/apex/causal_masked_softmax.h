#pragma once

#include <assert.h>
#include <cuda_fp16.h>
#include <cfloat>
#include <limits>
#include <stdint.h>
#include <c10/macros/Macros.h>

namespace {

template <typename Datatype, int ELEMENTS_PER_LDG>
__device__ __inline__ void copy_vector(Datatype* dst, const Datatype* src);

template <>
__device__ __inline__ void copy_vector<c10::BFloat16, 1>(c10::BFloat16* dst, const c10::BFloat16* src) {
  *dst = *src;
}

template <>
__device__ __inline__ void copy_vector<c10::Half, 1>(c10::Half* dst, const c10::Half* src) {
  *dst = *src;
}

int log2_ceil(int value) {
  int log2_value = 0;
  while ((1 << log2_value) < value) ++log2_value;
  return log2_value;
}

// Rows of an upper triangle that is masked: row r of a square takes r + 1 elements.
template <typename input_t, typename output_t, typename acc_t, int log2_elements>
__global__ void causal_masked_softmax_forward(output_t* dst, const input_t* src, const acc_t scale,
                                              int batch_size, int stride, int element_count) {
  constexpr int next_power_of_two = 1 << log2_elements;
  constexpr int WARP_SIZE = (next_power_of_two < C10_WARP_SIZE) ? next_power_of_two : C10_WARP_SIZE;
  constexpr int WARP_ITERATIONS = next_power_of_two / WARP_SIZE;

  const int batch = blockDim.y * blockIdx.y * gridDim.x + blockIdx.x + gridDim.x * threadIdx.y;
  const int local_seq = blockIdx.x + 1;
  if (batch >= batch_size * stride) return;
  const int local_idx = threadIdx.x;
  src += static_cast<int64_t>(batch) * stride;
  dst += static_cast<int64_t>(batch) * stride;

  acc_t elements[WARP_ITERATIONS];
  acc_t max_value = -std::numeric_limits<acc_t>::infinity();
#pragma unroll
  for (int it = 0; it < WARP_ITERATIONS; ++it) {
    const int at = local_idx + it * WARP_SIZE;
    elements[it] = -std::numeric_limits<acc_t>::infinity();
    if (at < local_seq) {
      input_t one;
      copy_vector<input_t, 1>(&one, src + at);
      elements[it] = (acc_t)one * scale;
      max_value = max_value < elements[it] ? elements[it] : max_value;
    }
  }
#pragma unroll
  for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
    const acc_t other = __shfl_xor_sync(0xffffffff, max_value, offset, WARP_SIZE);
    max_value = max_value < other ? other : max_value;
  }
  acc_t sum = 0.0f;
#pragma unroll
  for (int it = 0; it < WARP_ITERATIONS; ++it) {
    elements[it] = local_idx + it * WARP_SIZE < local_seq ? std::exp(elements[it] - max_value) : 0.0f;
    sum += elements[it];
  }
#pragma unroll
  for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(0xffffffff, sum, offset, WARP_SIZE);
#pragma unroll
  for (int it = 0; it < WARP_ITERATIONS; ++it) {
    const int at = local_idx + it * WARP_SIZE;
    if (at < element_count) dst[at] = elements[it] / sum;
  }
}

}  // namespace

template <typename input_t, typename output_t, typename acc_t>
void dispatch_causal_masked_softmax_forward(output_t* dst, const input_t* src, const input_t scale,
                                            int softmax_elements, int softmax_elements_stride,
                                            int attn_batches) {
  TORCH_INTERNAL_ASSERT(softmax_elements >= 0 && softmax_elements <= 512);
  if (softmax_elements == 0) {
    return;
  } else {
    const int log2_elements = log2_ceil(softmax_elements);
    const int seq_len = softmax_elements;
    constexpr int threads_per_block = 128;
    const int warps_per_block = (threads_per_block / C10_WARP_SIZE);
    TORCH_INTERNAL_ASSERT(attn_batches % warps_per_block == 0);
    const int blocks_per_seq = attn_batches / warps_per_block;
    dim3 blocks(seq_len, blocks_per_seq, 1);
    dim3 threads(C10_WARP_SIZE, warps_per_block, 1);
    switch (log2_elements) {
      case 7:  // 128
        causal_masked_softmax_forward<input_t, output_t, acc_t, 7>
            <<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
                dst, src, scale, attn_batches, softmax_elements_stride, softmax_elements);
        break;
      case 8:  // 256
        causal_masked_softmax_forward<input_t, output_t, acc_t, 8>
            <<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
                dst, src, scale, attn_batches, softmax_elements_stride, softmax_elements);
        break;
      case 9:  // 512
        causal_masked_softmax_forward<input_t, output_t, acc_t, 9>
            <<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
                dst, src, scale, attn_batches, softmax_elements_stride, softmax_elements);
        break;
      default:
        break;
    }
  }
}
