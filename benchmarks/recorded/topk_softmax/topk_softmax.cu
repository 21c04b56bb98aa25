// Which 8 of E experts each of T tokens goes to: softmax over a row of logits[T, E], then the 8
// largest probabilities, largest first, as weights[T, 8] and ids[T, 8]. bf16 in, fp32 inside.
//
// Ranked by logit; of equal ones the lower id comes first. Softmax keeps that order, but different
// logits may round to the same probability, or both to 0: ranking those would be another order.
//
// One block a row (grid = T); E from 8 to 1024, all logits finite.
#include <cuda_bf16.h>

#ifndef RENORMALIZE
#define RENORMALIZE false  // true: the 8 weights of a row add up to 1
#endif

constexpr int kTopK = 8;
constexpr int kMaxExperts = 1024;
constexpr int kBlockSize = 128;  // a power of two
constexpr float kTaken = -3.4028235e38f;  // the least float, below every finite bf16

struct Pick {
  float logit;
  int id;
};

__device__ Pick better(Pick a, Pick b) {
  const bool first = a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  return first ? a : b;
}

// These three combine one value of each thread in `scratch`, and give the result to every thread.
// `scratch` may not be written again before a barrier.
__device__ float block_max(float value, float* scratch) {
  const int thread = threadIdx.x;
  scratch[thread] = value;
  __syncthreads();
  for (int half = kBlockSize / 2; half > 0; half /= 2) {
    if (thread < half) scratch[thread] = fmaxf(scratch[thread], scratch[thread + half]);
    __syncthreads();
  }
  return scratch[0];
}

__device__ float block_sum(float value, float* scratch) {
  const int thread = threadIdx.x;
  scratch[thread] = value;
  __syncthreads();
  for (int half = kBlockSize / 2; half > 0; half /= 2) {
    if (thread < half) scratch[thread] += scratch[thread + half];
    __syncthreads();
  }
  return scratch[0];
}

__device__ Pick block_best(Pick value, Pick* scratch) {
  const int thread = threadIdx.x;
  scratch[thread] = value;
  __syncthreads();
  for (int half = kBlockSize / 2; half > 0; half /= 2) {
    if (thread < half) scratch[thread] = better(scratch[thread], scratch[thread + half]);
    __syncthreads();
  }
  return scratch[0];
}

extern "C" __global__ void topk_softmax(float* __restrict__ weights, int* __restrict__ ids,
                                        const __nv_bfloat16* __restrict__ logits, int T, int E) {
  __shared__ float row[kMaxExperts];
  __shared__ float maxima[kBlockSize];
  __shared__ float sums[kBlockSize];
  __shared__ Pick picks[kBlockSize];

  const size_t token = blockIdx.x;
  const int thread = threadIdx.x;

  float largest = kTaken;
  for (int i = thread; i < E; i += kBlockSize) {
    row[i] = __bfloat162float(logits[token * E + i]);
    largest = fmaxf(largest, row[i]);
  }
  largest = block_max(largest, maxima);

  float sum = 0.0f;
  for (int i = thread; i < E; i += kBlockSize) sum += expf(row[i] - largest);
  sum = block_sum(sum, sums);

  float total = 0.0f;
  for (int k = 0; k < kTopK; ++k) {
    Pick best = {kTaken, 0};
    for (int i = thread; i < E; i += kBlockSize) best = better(best, Pick{row[i], i});
    best = block_best(best, picks);
    if (thread == 0) {
      const float weight = expf(best.logit - largest) / sum;
      weights[token * kTopK + k] = weight;
      ids[token * kTopK + k] = best.id;
      total += weight;
      row[best.id] = kTaken;
    }
    __syncthreads();
  }

  if (RENORMALIZE && thread == 0) {
    for (int k = 0; k < kTopK; ++k) weights[token * kTopK + k] /= total;
  }
}
