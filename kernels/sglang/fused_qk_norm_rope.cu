// Query and key heads normalised and rotated by their position, in place: each head of q and k in
// qkv[T, (Q + 2 G) D] becomes rotate(head / sqrt(mean of head^2 + eps) * w), where w is wq[D] or
// wk[D]. v stays as it is. bf16 in and out, fp32 inside, one rounding.
//
// Pair i of the D / 2 is turned by positions[t] * theta^(-2 i / D): elements i and i + D / 2 make
// it in the style neox, 2 i and 2 i + 1 in the style interleaved. All of a head is rotated, and
// there is no yarn. The squares of a head must add up to less than the largest float.
//
// The launch choices are those of SGLang's prebuilt operator: 256 threads, a warp for each head of
// each token, D / 32 neighbours a lane, and frequencies, sines and cosines computed by every warp.
#include <cuda_bf16.h>

#ifndef STYLE
#define STYLE neox
#endif

enum Style { neox, interleaved };

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;

__device__ float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

template <int kDim>
__global__ void fused_qk_norm_rope(__nv_bfloat16* __restrict__ qkv,
                                   const __nv_bfloat16* __restrict__ wq,
                                   const __nv_bfloat16* __restrict__ wk,
                                   const int* __restrict__ positions, float theta, float eps, int T,
                                   int Q, int G) {
  constexpr int kEach = kDim / kWarp;
  struct alignas(2 * kEach) Piece {
    __nv_bfloat162 pairs[kEach / 2];
  };
  const int lane = threadIdx.x % kWarp;
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
  const int token = warp / (Q + G);
  const int head = warp % (Q + G);  // of q, then of k
  if (token >= T) return;

  const size_t start = (static_cast<size_t>(token) * (Q + 2 * G) + head) * kDim + lane * kEach;
  Piece* place = reinterpret_cast<Piece*>(qkv + start);
  Piece piece = *place;
  const Piece weights = *reinterpret_cast<const Piece*>((head < Q ? wq : wk) + lane * kEach);

  float x[kEach];
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < kEach / 2; ++k) {
    const float2 both = __bfloat1622float2(piece.pairs[k]);
    x[2 * k] = both.x;
    x[2 * k + 1] = both.y;
    squares += both.x * both.x + both.y * both.y;
  }
  const float scale = rsqrtf(warp_sum(squares) / kDim + eps);
#pragma unroll
  for (int k = 0; k < kEach / 2; ++k) {
    const float2 w = __bfloat1622float2(weights.pairs[k]);
    x[2 * k] *= scale * w.x;
    x[2 * k + 1] *= scale * w.y;
  }

  const float position = positions[token];
  float result[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane * kEach + i;
    const int pair = STYLE == neox ? at % (kDim / 2) : at / 2;
    const float frequency = powf(theta, -2.0f * pair / kDim);
    float sine, cosine;
    sincosf(position * frequency, &sine, &cosine);
    const float other = STYLE == neox ? __shfl_xor_sync(kAll, x[i], kWarp / 2) : x[i ^ 1];
    const bool second = STYLE == neox ? lane >= kWarp / 2 : i % 2 == 1;
    result[i] = x[i] * cosine + (second ? other : -other) * sine;
  }
#pragma unroll
  for (int k = 0; k < kEach / 2; ++k) {
    piece.pairs[k] = __floats2bfloat162_rn(result[2 * k], result[2 * k + 1]);
  }
  *place = piece;
}
