// Which k of E experts each of T tokens goes to: softmax over a row of logits[T, E], then the k
// largest probabilities, largest first, as weights[T, k] and ids[T, k]. bf16 in, fp32 inside.
//
// Ranked by logit; of equal ones the lower id comes first. Softmax keeps that order, but different
// logits may round to the same probability, or both to 0. SGLang ranks the probabilities, of equal
// ones the lower id: where they are rounded that is another order than this one.
//
// E of any size, k up to E, all logits finite.
//
// The rest of the algorithm and the launch choices are SGLang's:
// - E a power of two from 8 to 512: topk_softmax<E>, 4 warps a block. A thread has 8 neighbours of a
//   row, from one load of 16 bytes, or 16 where E is 512: E / 8 threads a row, 32 at most, and so up
//   to 32 rows a warp. Softmax is done first; then come k rounds of a maximum over a thread's values
//   and shuffles between the threads of the row, and what was picked is crossed out.
// - else topk_softmax_any, a block of 256 a row.
#include <cuda_bf16.h>

#ifndef RENORMALIZE
#define RENORMALIZE true  // the k weights of a row add up to 1
#endif

constexpr int kWarp = 32;
constexpr int kWarps = 4;     // of a block
constexpr int kVector = 8;    // neighbours that one load takes
constexpr int kAnyWarps = 8;  // of a block of topk_softmax_any
constexpr unsigned kAll = 0xffffffffu;
constexpr float kLeast = -3.4028235e38f;  // the least float, below every finite bf16

struct alignas(2 * kVector) Piece {
  __nv_bfloat16 values[kVector];
};

struct Pick {
  float logit;
  int id;
};

__device__ __forceinline__ bool ahead(Pick a, Pick b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

__device__ __forceinline__ Pick better(Pick a, Pick b) { return ahead(a, b) ? a : b; }

// These three combine one value of each of kLanes neighbours, and give the result to all of them.
template <int kLanes>
__device__ __forceinline__ float lanes_max(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAll, value, step));
  }
  return value;
}

template <int kLanes>
__device__ __forceinline__ float lanes_sum(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

template <int kLanes>
__device__ __forceinline__ Pick lanes_best(Pick value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    const float logit = __shfl_xor_sync(kAll, value.logit, step);
    const int id = __shfl_xor_sync(kAll, value.id, step);
    value = better(value, Pick{logit, id});
  }
  return value;
}

template <int kExperts>
__global__ void __launch_bounds__(kWarps * kWarp)
    topk_softmax(float* __restrict__ weights, int* __restrict__ ids,
                 const __nv_bfloat16* __restrict__ logits, int T, int E, int k) {
  constexpr int kLanes = kExperts < kVector * kWarp ? kExperts / kVector : kWarp;  // of a row
  constexpr int kLoads = kExperts / (kLanes * kVector);
  const int lane = threadIdx.x % kLanes;
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
  // All lanes of a warp take part in its shuffles: what is past the end does the last row again.
  const size_t start = static_cast<size_t>(min(row, T - 1)) * kExperts;
  const Piece* source = reinterpret_cast<const Piece*>(logits + start);

  float values[kLoads][kVector];
  float largest = kLeast;
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    const Piece piece = source[j * kLanes + lane];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[j][i] = __bfloat162float(piece.values[i]);
      largest = fmaxf(largest, values[j][i]);
    }
  }
  largest = lanes_max<kLanes>(largest);

  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += expf(values[j][i] - largest);
  }
  sum = lanes_sum<kLanes>(sum);

  const bool writes = lane == 0 && row < T;
  const size_t to = static_cast<size_t>(row) * k;
  float total = 0.0f;
  for (int n = 0; n < k; ++n) {
    Pick best = {kLeast, 0};
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        best = better(best, Pick{values[j][i], (j * kLanes + lane) * kVector + i});
      }
    }
    best = lanes_best<kLanes>(best);
    if (writes) {
      const float weight = expf(best.logit - largest) / sum;
      weights[to + n] = weight;
      ids[to + n] = best.id;
      total += weight;
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (best.id == (j * kLanes + lane) * kVector + i) values[j][i] = kLeast;
      }
    }
  }
  if (RENORMALIZE && writes) {
    for (int n = 0; n < k; ++n) weights[to + n] /= total;
  }
}

// The best of a row behind `last`, given to every thread. Nothing has to be crossed out: picks
// descend. `scratch` may be written again afterwards.
__device__ __forceinline__ Pick next_pick(const __nv_bfloat16* row, int E, Pick last,
                                          Pick* scratch) {
  Pick best = {kLeast, 0};
  for (int i = threadIdx.x; i < E; i += kAnyWarps * kWarp) {
    const Pick one = {__bfloat162float(row[i]), i};
    if (ahead(last, one)) best = better(best, one);
  }
  best = lanes_best<kWarp>(best);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = best;
  __syncthreads();
  best = scratch[0];
#pragma unroll
  for (int w = 1; w < kAnyWarps; ++w) best = better(best, scratch[w]);
  __syncthreads();
  return best;
}

extern "C" __global__ void __launch_bounds__(kAnyWarps * kWarp)
    topk_softmax_any(float* __restrict__ weights, int* __restrict__ ids,
                     const __nv_bfloat16* __restrict__ logits, int T, int E, int k) {
  __shared__ Pick picks[kAnyWarps];
  __shared__ float sums[kAnyWarps];
  const Pick none = {-kLeast, 0};  // ahead of all

  const __nv_bfloat16* row = logits + static_cast<size_t>(blockIdx.x) * E;
  const float largest = next_pick(row, E, none, picks).logit;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < E; i += kAnyWarps * kWarp) {
    sum += expf(__bfloat162float(row[i]) - largest);
  }
  sum = lanes_sum<kWarp>(sum);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  sum = sums[0];
#pragma unroll
  for (int w = 1; w < kAnyWarps; ++w) sum += sums[w];

  const size_t to = static_cast<size_t>(blockIdx.x) * k;
  float total = 0.0f;
  Pick last = none;
  for (int n = 0; n < k; ++n) {
    last = next_pick(row, E, last, picks);
    const float weight = expf(last.logit - largest) / sum;
    total += weight;
    if (threadIdx.x == 0) {
      weights[to + n] = weight;
      ids[to + n] = last.id;
    }
  }
  if (RENORMALIZE && threadIdx.x == 0) {
    for (int n = 0; n < k; ++n) weights[to + n] /= total;
  }
}
