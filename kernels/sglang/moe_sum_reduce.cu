// What the K experts of each token gave made into one, y[t, h] = scale * (sum over k of
// x[t, k, h]): bf16 in and out, fp32 inside, one rounding.
//
// The launch choices are those of SGLang's prebuilt operator, which has a kernel for each range of
// T. K is known to the compiler where it is 2, 4, 8 or 9.
//
//   T <= 128  sum_by_elements  a thread has one element, a block 256 of a token
//   T <= 256  sum_by_warps     a thread has one element, a warp 32 of a token, a block 4 tokens
//   above     sum_by_vectors   a thread has 16 elements, a warp 512 of a token, a block 8 tokens
//
// The last one needs H to be a multiple of 16, and has one loop over K for all K. Of its warps only
// half have work: the grid is made as if a thread had 8 elements.
#include <cuda_bf16.h>

constexpr int kWarp = 32;
constexpr int kPairs = 4;  // of an access of 16 bytes

struct alignas(16) Vector {
  __nv_bfloat162 pairs[kPairs];
};

template <int kTopK>
__device__ void sum_element(__nv_bfloat16* y, const __nv_bfloat16* x, float scale, int K, int H) {
  float sum = 0.0f;
  if constexpr (kTopK > 0) {
#pragma unroll
    for (int k = 0; k < kTopK; ++k) sum += __bfloat162float(x[static_cast<size_t>(k) * H]);
  } else {
#pragma unroll 1
    for (int k = 0; k < K; ++k) sum += __bfloat162float(x[static_cast<size_t>(k) * H]);
  }
  *y = __float2bfloat16(sum * scale);
}

__device__ void sum_element(__nv_bfloat16* y, const __nv_bfloat16* x, float scale, int K, int H,
                            int token, int column) {
  y += static_cast<size_t>(token) * H + column;
  x += static_cast<size_t>(token) * K * H + column;
  switch (K) {
    case 2: return sum_element<2>(y, x, scale, K, H);
    case 4: return sum_element<4>(y, x, scale, K, H);
    case 8: return sum_element<8>(y, x, scale, K, H);
    case 9: return sum_element<9>(y, x, scale, K, H);
    default: return sum_element<0>(y, x, scale, K, H);
  }
}

extern "C" __global__ void sum_by_elements(__nv_bfloat16* __restrict__ y,
                                           const __nv_bfloat16* __restrict__ x, float scale, int T,
                                           int K, int H) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column < H) sum_element(y, x, scale, K, H, blockIdx.y, column);
}

extern "C" __global__ void sum_by_warps(__nv_bfloat16* __restrict__ y,
                                        const __nv_bfloat16* __restrict__ x, float scale, int T,
                                        int K, int H) {
  const int token = blockIdx.y * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int column = blockIdx.x * kWarp + threadIdx.x % kWarp;
  if (token < T && column < H) sum_element(y, x, scale, K, H, token, column);
}

extern "C" __global__ void sum_by_vectors(__nv_bfloat16* __restrict__ y,
                                          const __nv_bfloat16* __restrict__ x, float scale, int T,
                                          int K, int H) {
  const int token = blockIdx.y * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int column = 16 * (blockIdx.x * kWarp + threadIdx.x % kWarp);
  if (token >= T || column >= H) return;

  float2 sums[2 * kPairs] = {};
#pragma unroll 1
  for (int k = 0; k < K; ++k) {
    const size_t from = (static_cast<size_t>(token) * K + k) * H + column;
    const Vector* vectors = reinterpret_cast<const Vector*>(x + from);
    const Vector loaded[2] = {vectors[0], vectors[1]};
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const float2 values = __bfloat1622float2(loaded[i / kPairs].pairs[i % kPairs]);
      sums[i].x += values.x;
      sums[i].y += values.y;
    }
  }

  Vector* result = reinterpret_cast<Vector*>(y + static_cast<size_t>(token) * H + column);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    Vector rounded;
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const float2 sum = sums[i * kPairs + k];
      rounded.pairs[k] = __floats2bfloat162_rn(sum.x * scale, sum.y * scale);
    }
    result[i] = rounded;
  }
}
