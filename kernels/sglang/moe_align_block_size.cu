// Sorts the routes of an MoE layer by expert: topk_ids[T, k] names k experts for each of T tokens,
// and a route is its place i in that array, 0 to T * k - 1. Each expert's routes follow one another
// in sorted_ids, in any order, padded with T * k to a multiple of B places, so that B places (a
// tile) belong to one expert: expert_ids[j] is that of tile j. num_tokens_post_pad[0] is the number
// of places in use; those behind hold T * k in sorted_ids and -1 in expert_ids.
//
// What is launched:
// - T * k < 1024 and E <= 64: align_small, one block of 256 threads that pad and max(E, 32) that
//   count, a share of the routes each;
// - else align_experts, 2 blocks of 1024: one counts all routes and finds where each expert starts,
//   the other pads; then scatter_routes, 256 routes a block, each of which takes its expert's next
//   place with an atomic: the order within an expert differs from run to run.
//
// E up to 1024, B a multiple of 4, all ids from 0 to E - 1. scratch: the starts of the experts.

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 1024;  // of align_experts
constexpr int kMaxExperts = 1024;
constexpr int kPaddingThreads = 256;  // of align_small
constexpr int kSmallExperts = 64;
constexpr int kScatterThreads = 256;

__device__ int tiles_of(int routes, int B) { return (routes + B - 1) / B; }

// Tiles that suffice for any routing: at most one a route, at most B - 1 unused places an expert.
__device__ int tiles_in_all(int routes, int E, int B) {
  return min(routes, tiles_of(routes + E * (B - 1), B));
}

__device__ void pad(int* sorted_ids, int places, int value, int thread, int threads) {
  int4* words = reinterpret_cast<int4*>(sorted_ids);
  for (int i = thread; i < places / 4; i += threads) words[i] = {value, value, value, value};
}

// The sum of `value` over this thread and those before it; for all 1024 threads of a block.
__device__ int sum_up_to(int value, int* sums) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAll, value, step);
    if (lane >= step) value += other;
  }
  if (lane == kWarp - 1) sums[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += sums[w];
  return value;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    align_experts(int* __restrict__ sorted_ids, int* __restrict__ expert_ids,
                  int* __restrict__ num_tokens_post_pad, int* __restrict__ scratch,
                  const int* __restrict__ topk_ids, int T, int E, int k, int B) {
  __shared__ int counts[kMaxExperts];
  __shared__ int ends[kMaxExperts];  // in tiles
  __shared__ int sums[kThreads / kWarp];

  const int routes = T * k;
  const int tiles = tiles_in_all(routes, E, B);
  const int thread = threadIdx.x;
  if (blockIdx.x == 1) {
    pad(sorted_ids, tiles * B, routes, thread, kThreads);
    return;
  }
  counts[thread] = 0;
  __syncthreads();
  for (int i = thread; i < routes; i += kThreads) atomicAdd(&counts[topk_ids[i]], 1);
  __syncthreads();
  const int own = tiles_of(counts[thread], B);
  const int end = sum_up_to(own, sums);
  ends[thread] = end;
  if (thread < E) scratch[thread] = (end - own) * B;
  __syncthreads();
  const int used = ends[E - 1];
  if (thread == 0) num_tokens_post_pad[0] = used * B;
  for (int tile = thread; tile < tiles; tile += kThreads) {
    int low = 0;
    int high = E - 1;
    while (low < high) {  // the first expert that ends behind the tile
      const int middle = (low + high) / 2;
      if (ends[middle] > tile) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    expert_ids[tile] = tile < used ? low : -1;
  }
}

extern "C" __global__ void __launch_bounds__(kScatterThreads)
    scatter_routes(int* __restrict__ sorted_ids, int* __restrict__ expert_ids,
                   int* __restrict__ num_tokens_post_pad, int* __restrict__ scratch,
                   const int* __restrict__ topk_ids, int T, int E, int k, int B) {
  const int routes = T * k;
  const int stride = gridDim.x * kScatterThreads;
  for (int i = blockIdx.x * kScatterThreads + threadIdx.x; i < routes; i += stride) {
    sorted_ids[atomicAdd(&scratch[topk_ids[i]], 1)] = i;
  }
}

extern "C" __global__ void __launch_bounds__(kPaddingThreads + kSmallExperts)
    align_small(int* __restrict__ sorted_ids, int* __restrict__ expert_ids,
                int* __restrict__ num_tokens_post_pad, int* __restrict__ scratch,
                const int* __restrict__ topk_ids, int T, int E, int k, int B) {
  __shared__ int next[kSmallExperts][kSmallExperts];  // of a counting thread, for an expert
  __shared__ int counts[kSmallExperts];
  __shared__ int starts[kSmallExperts + 1];  // in tiles

  const int routes = T * k;
  const int tiles = tiles_in_all(routes, E, B);
  const int thread = static_cast<int>(threadIdx.x) - kPaddingThreads;  // negative: pads
  const int threads = blockDim.x - kPaddingThreads;
  const int share = (routes + threads - 1) / threads;
  const int first = min(thread * share, routes);
  const int last = min(first + share, routes);
  if (thread < 0) {
    pad(sorted_ids, tiles * B, routes, threadIdx.x, kPaddingThreads);
  } else {
    for (int e = 0; e < E; ++e) next[thread][e] = 0;
    for (int i = first; i < last; ++i) ++next[thread][topk_ids[i]];
  }
  __syncthreads();
  if (thread >= 0 && thread < E) {
    int sum = 0;
    for (int t = 0; t < threads; ++t) {
      const int own = next[t][thread];
      next[t][thread] = sum;
      sum += own;
    }
    counts[thread] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    starts[0] = 0;
    for (int e = 0; e < E; ++e) starts[e + 1] = starts[e] + tiles_of(counts[e], B);
    num_tokens_post_pad[0] = starts[E] * B;
  }
  __syncthreads();
  if (thread < 0) {
    for (int tile = starts[E] + threadIdx.x; tile < tiles; tile += kPaddingThreads) {
      expert_ids[tile] = -1;
    }
    return;
  }
  if (thread < E) {
    for (int tile = starts[thread]; tile < starts[thread + 1]; ++tile) expert_ids[tile] = thread;
  }
  for (int i = first; i < last; ++i) {
    const int expert = topk_ids[i];
    sorted_ids[starts[expert] * B + next[thread][expert]++] = i;
  }
}
