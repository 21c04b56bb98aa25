// Attention over two parts of the keys made into attention over both: each part comes as its result
// v[T, H, D] and the natural logarithm s[T, H] of the sum of its exponentials. With weights
// exp(s_a) and exp(s_b), v_merged is the weighted mean of v_a and v_b, and s_merged the logarithm
// of the weights' sum: bf16 v, fp32 s, fp32 inside, one rounding.
//
// A part without keys has s of -inf, or of +inf, which stands for the same. Where neither part has
// any, all results are NaN.
//
// The launch choices are those of SGLang's prebuilt operator: 128 threads a block, one access of 16
// bytes a thread, and every thread works out the weights of its head. D is a multiple of 8.
#include <cuda_bf16.h>

constexpr int kElements = 8;

struct alignas(16) Vector {
  __nv_bfloat162 pairs[kElements / 2];
};

// The logarithm of a sum without any terms is -inf.
__device__ float checked(float s) {
  const float none = __uint_as_float(0xff800000u);
  return s == -none ? none : s;
}

extern "C" __global__ void merge_state(__nv_bfloat16* __restrict__ v_merged,
                                       float* __restrict__ s_merged,
                                       const __nv_bfloat16* __restrict__ v_a,
                                       const float* __restrict__ s_a,
                                       const __nv_bfloat16* __restrict__ v_b,
                                       const float* __restrict__ s_b, int T, int H, int D) {
  const int per_head = D / kElements;
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  const int token = index / (H * per_head);
  const int head = index / per_head - token * H;
  const int column = index % per_head;
  if (token >= T) return;

  const int state = token * H + head;
  const float a = checked(s_a[state]);
  const float b = checked(s_b[state]);
  const float larger = fmaxf(a, b);
  const float power_a = expf(a - larger);  // NaN if both are -inf
  const float power_b = expf(b - larger);
  const float sum = power_a + power_b;
  const float weight_a = power_a / sum;
  const float weight_b = power_b / sum;

  const size_t at = static_cast<size_t>(state) * per_head + column;
  const Vector of_a = reinterpret_cast<const Vector*>(v_a)[at];
  const Vector of_b = reinterpret_cast<const Vector*>(v_b)[at];
  Vector result;
#pragma unroll
  for (int k = 0; k < kElements / 2; ++k) {
    const float2 x = __bfloat1622float2(of_a.pairs[k]);
    const float2 y = __bfloat1622float2(of_b.pairs[k]);
    result.pairs[k] = __floats2bfloat162_rn(weight_a * x.x + weight_b * y.x,
                                            weight_a * x.y + weight_b * y.y);
  }
  reinterpret_cast<Vector*>(v_merged)[at] = result;
  if (column == 0) s_merged[state] = logf(sum) + larger;
}
