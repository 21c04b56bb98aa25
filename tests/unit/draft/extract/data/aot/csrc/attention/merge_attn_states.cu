#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <optional>

#include "op_utils.h"

// 128 bits hold 4 floats, or 8 values of 16 bits.
inline __device__ void to_float(float& to, const float from) { to = from; }
inline __device__ void to_float(float& to, const half from) { to = __half2float(from); }
inline __device__ void to_float(float& to, const __nv_bfloat16 from) { to = __bfloat162float(from); }
inline __device__ void from_float(float& to, const float from) { to = from; }
inline __device__ void from_float(half& to, const float from) { to = __float2half(from); }
inline __device__ void from_float(__nv_bfloat16& to, const float from) { to = __float2bfloat16(from); }

template <typename scalar_t, const uint NUM_THREADS>
__global__ void merge_attn_states_kernel(
    scalar_t* output, float* output_lse, const scalar_t* prefix_output, const float* prefix_lse,
    const scalar_t* suffix_output, const float* suffix_lse, const uint num_tokens,
    const uint num_heads, const uint head_size) {
  using pack_128b_t = uint4;
  const uint pack_size = 16 / sizeof(scalar_t);
  const uint threads_per_head = head_size / pack_size;
  const uint global_idx = blockIdx.x * NUM_THREADS + threadIdx.x;
  if (global_idx >= num_tokens * num_heads * threads_per_head) return;

  const uint row = global_idx / threads_per_head;
  const uint pack_offset = (global_idx % threads_per_head) * pack_size;
  float p_lse = prefix_lse[row];
  float s_lse = suffix_lse[row];
  p_lse = isinf(p_lse) ? -INFINITY : p_lse;
  s_lse = isinf(s_lse) ? -INFINITY : s_lse;
  const float max_lse = fmaxf(p_lse, s_lse);
  const float p_se = expf(p_lse - max_lse);
  const float s_se = expf(s_lse - max_lse);
  const float p_scale = p_se / (p_se + s_se);
  const float s_scale = s_se / (p_se + s_se);

  if (pack_offset < head_size) {
    const pack_128b_t p = reinterpret_cast<const pack_128b_t*>(&prefix_output[row * head_size])[pack_offset / pack_size];
    const pack_128b_t s = reinterpret_cast<const pack_128b_t*>(&suffix_output[row * head_size])[pack_offset / pack_size];
    pack_128b_t o;
#pragma unroll
    for (uint i = 0; i < pack_size; ++i) {
      float a, b;
      to_float(a, reinterpret_cast<const scalar_t*>(&p)[i]);
      to_float(b, reinterpret_cast<const scalar_t*>(&s)[i]);
      from_float(reinterpret_cast<scalar_t*>(&o)[i], a * p_scale + b * s_scale);
    }
    reinterpret_cast<pack_128b_t*>(&output[row * head_size])[pack_offset / pack_size] = o;
  }
  if (output_lse != nullptr && pack_offset == 0) output_lse[row] = logf(p_se + s_se) + max_lse;
}

#define LAUNCH_MERGE(scalar_t, NUM_THREADS)                                                     \
  {                                                                                             \
    merge_attn_states_kernel<scalar_t, NUM_THREADS><<<grid, block, 0, stream>>>(                \
        reinterpret_cast<scalar_t*>(output.data_ptr()),                                         \
        reinterpret_cast<float*>(output_lse.data_ptr()),                                        \
        reinterpret_cast<scalar_t*>(prefix_output.data_ptr()),                                  \
        reinterpret_cast<float*>(prefix_lse.data_ptr()),                                        \
        reinterpret_cast<scalar_t*>(suffix_output.data_ptr()),                                  \
        reinterpret_cast<float*>(suffix_lse.data_ptr()), num_tokens, num_heads, head_size);     \
  }

template <typename scalar_t>
void merge_launcher(
    const at::Tensor& prefix_output, const at::Tensor& prefix_lse, const at::Tensor& suffix_output,
    const at::Tensor& suffix_lse, at::Tensor& output, at::Tensor& output_lse) {
  constexpr uint NUM_THREADS = 128;
  const uint num_tokens = output.size(0);
  const uint num_heads = output.size(1);
  const uint head_size = output.size(2);
  const uint pack_size = 16 / sizeof(scalar_t);
  TORCH_CHECK(head_size % pack_size == 0, "headsize must be a multiple of the pack");
  const uint threads_per_head = head_size / pack_size;
  const uint total_threads = num_tokens * num_heads * threads_per_head;
  dim3 block(NUM_THREADS);
  dim3 grid((total_threads + NUM_THREADS - 1) / NUM_THREADS);
  const c10::cuda::OptionalCUDAGuard device_guard(prefix_output.device());
  auto stream = at::cuda::getCurrentCUDAStream();
  LAUNCH_MERGE(scalar_t, NUM_THREADS);
}

void merge_state(
    at::Tensor v_a, at::Tensor s_a, at::Tensor v_b, at::Tensor s_b, at::Tensor v, at::Tensor s) {
  if (v.dtype() == at::ScalarType::Half) {
    merge_launcher<half>(v_a, s_a, v_b, s_b, v, s);
  } else {
    merge_launcher<__nv_bfloat16>(v_a, s_a, v_b, s_b, v, s);
  }
}
