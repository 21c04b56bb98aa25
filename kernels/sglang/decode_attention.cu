// Attention of one query token a sequence: out[b, h] is the mean of the values of sequence b, weighted
// with exp(scale * q[b, h] . k), over its first lengths[b] tokens; zeros where there are none. G heads of
// q share one of the H heads of k and v. Token t of a sequence is the t % P th of the page
// page_table[b, t / P], of which W columns are there. bf16 in and out, fp32 inside.
//
// One block has all tokens of a head of q. Each warp takes every fourth piece of them, 16 bytes of a
// token a lane, and in the end the warps' results are put together.
#include <cuda_bf16.h>

constexpr int kWarp = 32;
constexpr int kWarps = 8;
constexpr int kElements = 8;  // of a lane
constexpr unsigned kAll = 0xffffffffu;

struct alignas(16) Vector {
  __nv_bfloat162 pairs[kElements / 2];
};

// A mean of some tokens: the largest score, the sum of powers relative to it, and that of values.
struct State {
  float top;
  float total;
  float sums[kElements];

  __device__ void add(float score, float weight, const float (&values)[kElements]) {
    const float larger = fmaxf(top, score);
    if (weight == 0.0f) return;
    const float mine = expf(top - larger);
    const float theirs = weight * expf(score - larger);
    top = larger;
    total = total * mine + theirs;
    for (int i = 0; i < kElements; ++i) sums[i] = sums[i] * mine + values[i] * theirs;
  }
};

__device__ State no_tokens() { return {__uint_as_float(0xff800000u), 0.0f, {}}; }

__device__ void unpack(float (&values)[kElements], const Vector& vector) {
  for (int i = 0; i < kElements / 2; ++i) {
    const float2 pair = __bfloat1622float2(vector.pairs[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

// kDim: 64, 128 or 256. Grid: heads of q, sequences.
template <int kDim>
__global__ void __launch_bounds__(kWarps * kWarp)
    decode_attention(__nv_bfloat16* __restrict__ out, const __nv_bfloat16* __restrict__ q,
                     const __nv_bfloat16* __restrict__ k, const __nv_bfloat16* __restrict__ v,
                     const int* __restrict__ page_table, const int* __restrict__ lengths, int B,
                     int L, int W, int H, int G, int P, float scale) {
  constexpr int kLanes = kDim / kElements;    // of a token
  constexpr int kTogether = kWarp / kLanes;   // tokens of a warp
  __shared__ State states[kWarps][kWarp];
  const int head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int column = lane % kLanes * kElements;
  const size_t row = static_cast<size_t>(sequence) * H * G + head;
  const int length = lengths[sequence];

  float query[kElements];
  unpack(query, *reinterpret_cast<const Vector*>(q + row * kDim + column));
  State state = no_tokens();
  for (int first = warp * kTogether; first < length; first += kWarps * kTogether) {
    const int token = first + lane / kLanes;
    float score = 0.0f;
    float value[kElements] = {};
    if (token < length) {
      const int page = page_table[static_cast<size_t>(sequence) * W + token / P];
      const size_t at =
          ((static_cast<size_t>(page) * P + token % P) * H + head / G) * kDim + column;
      float key[kElements];
      unpack(key, *reinterpret_cast<const Vector*>(k + at));
      unpack(value, *reinterpret_cast<const Vector*>(v + at));
      for (int i = 0; i < kElements; ++i) score += query[i] * key[i];
    }
    for (int step = kLanes / 2; step > 0; step /= 2) score += __shfl_xor_sync(kAll, score, step);
    if (token < length) state.add(score * scale, 1.0f, value);
  }
  states[warp][lane] = state;
  __syncthreads();

  if (threadIdx.x >= kLanes) return;
  State all = no_tokens();
  for (int from = threadIdx.x; from < kWarps * kWarp; from += kLanes) {
    const State& part = states[from / kWarp][from % kWarp];
    float mean[kElements];
    for (int i = 0; i < kElements; ++i) mean[i] = part.total == 0.0f ? 0.0f : part.sums[i] / part.total;
    all.add(part.top, part.total, mean);
  }
  Vector result;
  const float share = length > 0 ? 1.0f / all.total : 0.0f;
  for (int i = 0; i < kElements / 2; ++i) {
    result.pairs[i] = __floats2bfloat162_rn(all.sums[2 * i] * share, all.sums[2 * i + 1] * share);
  }
  *reinterpret_cast<Vector*>(out + row * kDim + column) = result;
}
