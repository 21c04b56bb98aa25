// Attention of one query token a sequence: out[b, h] is v_scale times the mean of the values of sequence
// b, weighted with exp(scale * k_scale * q[b, h] . k), over its first lengths[b] tokens; zeros where there
// are none. G heads of q share one of the H heads of k and v. Token t of a sequence is the t % P th of the
// page page_table[b, t / P], of which W columns are there. bf16 q and out, k and v in bf16 or fp8 e4m3,
// fp32 inside.
//
// One block has all tokens of a head of q. Each warp takes every eighth piece of them, 8 elements of a
// token a lane, and in the end the warps' results are put together.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#ifndef KV
#define KV bf16
#endif

struct bf16 {
  using Number = __nv_bfloat16;
};
struct fp8 {
  using Number = __nv_fp8_e4m3;
};
using Element = KV::Number;

constexpr int kWarp = 32;
constexpr int kWarps = 8;
constexpr int kElements = 8;  // of a lane
constexpr unsigned kAll = 0xffffffffu;

template <class T>
struct alignas(sizeof(T) * kElements) Vector {
  T elements[kElements];
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

template <class T>
__device__ void read(float (&values)[kElements], const T* from) {
  const Vector<T> vector = *reinterpret_cast<const Vector<T>*>(from);
  for (int i = 0; i < kElements; ++i) values[i] = static_cast<float>(vector.elements[i]);
}

// kDim: 64, 128 or 256. Grid: heads of q, sequences.
template <int kDim>
__global__ void __launch_bounds__(kWarps * kWarp)
    decode_attention(__nv_bfloat16* __restrict__ out, const __nv_bfloat16* __restrict__ q,
                     const Element* __restrict__ k, const Element* __restrict__ v,
                     const int* __restrict__ page_table, const int* __restrict__ lengths, int B,
                     int L, int W, int H, int G, int P, float scale, float k_scale,
                     float v_scale) {
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
  read(query, q + row * kDim + column);
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
      read(key, k + at);
      read(value, v + at);
      for (int i = 0; i < kElements; ++i) score += query[i] * key[i];
    }
    for (int step = kLanes / 2; step > 0; step /= 2) score += __shfl_xor_sync(kAll, score, step);
    if (token < length) state.add(score * scale * k_scale, 1.0f, value);
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
  Vector<__nv_bfloat16> result;
  const float share = length > 0 ? v_scale / all.total : 0.0f;
  for (int i = 0; i < kElements; ++i) result.elements[i] = __float2bfloat16(all.sums[i] * share);
  *reinterpret_cast<Vector<__nv_bfloat16>*>(out + row * kDim + column) = result;
}
