// Sums over the blocks of a cluster, by each way of reaching another block's shared memory; `broken`
// makes a mistake. y[cluster] is what the cluster's threads add up to.
#include <cooperative_groups.h>
#include <tune/tensor.h>

using u32 = unsigned int;

enum Mistake { none, no_first_sync, no_last_sync, one_block_waits, twice, unarrived, rank_too_high, plain_wait, no_wait, diverged,
               told_itself };

// Every block reads all of the others.
__global__ void by_loads(float* y, const float* x, const int* broken) {
  extern __shared__ float4 mine[];
  const u32 rank = tune::cluster_rank(), threads = blockDim.x;
  const float value = x[blockIdx.x * threads + threadIdx.x];
  mine[threadIdx.x] = make_float4(value, 0, 0, 0);
  if (*broken == one_block_waits && rank == 1) __syncthreads_or(threadIdx.x != 0 && __syncthreads_or(0));
  if (*broken == twice) tune::cluster_arrive();
  if (*broken == unarrived) tune::cluster_wait();
  if (*broken == diverged && threadIdx.x % 32 == 3) tune::cluster_arrive(), tune::cluster_wait();
  if (*broken != no_first_sync) tune::cluster_sync();
  float sum = 0;
  const u32 count = tune::cluster_size() + (*broken == rank_too_high);
  for (u32 peer = 0; peer < count; ++peer)
    for (u32 i = 0; i < threads; ++i)
      sum += tune::cluster_load(tune::map_shared(tune::shared_address(mine + i), (rank + peer) % count)).x;
  if (*broken != no_last_sync) tune::cluster_sync();
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

// As `by_loads`, through pointers and a variable that is met after the blocks have begun.
__global__ void by_pointers(float* y, const float* x, const int* broken) {
  const auto cluster = cooperative_groups::this_cluster();
  const u32 threads = blockDim.x;
  float sum = 0;
  for (int twice = 0; twice < 2; ++twice) {
    __shared__ float mine[64];
    mine[threadIdx.x] = x[blockIdx.x * threads + threadIdx.x];
    if (*broken != no_first_sync) cluster.sync();
    for (u32 peer = 0; peer < cluster.num_blocks(); ++peer) {
      const float* theirs = cluster.map_shared_rank(mine, peer);
      for (u32 i = 0; i < threads; ++i) sum += theirs[i];
    }
    if (*broken == no_last_sync && twice) break;
    cluster.sync();
    float* next = cluster.map_shared_rank(mine, (cluster.block_rank() + 1) % cluster.num_blocks());
    next[threadIdx.x] = -1;
    cluster.barrier_wait(cluster.barrier_arrive());
    sum += mine[threadIdx.x] + 1;
  }
  if (threadIdx.x == 0) y[blockIdx.x] = sum / 2;
}

// Every block sends to the first one, whose mbarrier counts.
__global__ void by_stores(float* y, const float* x, const int* broken) {
  __shared__ float4 received[8 * 64];
  __shared__ unsigned long long storage;
  const u32 rank = tune::cluster_rank(), threads = blockDim.x, count = tune::cluster_size();
  const u32 barrier = tune::shared_address(&storage);
  if (threadIdx.x == 0) {
    tune::mbarrier_init(barrier, 1);
    tune::fence_mbarrier_init();
    if (rank == 0) tune::mbarrier_arrive_expect_tx(barrier, 16 * threads * count);
  }
  tune::cluster_sync();
  const u32 to = tune::shared_address(received + rank * threads + threadIdx.x);
  const float value = x[blockIdx.x * threads + threadIdx.x];
  tune::cluster_store_async(tune::map_shared(to, 0), make_float4(value, 0, 0, 0), tune::map_shared(barrier, 0));
  if (*broken == plain_wait && rank == 1) tune::mbarrier_wait(tune::map_shared(barrier, 0), 0);
  if (rank == 0) {
    if (*broken != no_wait) tune::mbarrier_wait(barrier, 0);
    float sum = 0;
    for (u32 i = 0; i < threads * count; ++i) sum += received[i].x;
    for (u32 i = 0; threadIdx.x == 0 && i < count; ++i) y[blockIdx.x + i] = sum;
    if (*broken == no_wait) tune::mbarrier_wait(barrier, 0);
  }
}

// As `by_loads`, in PTX: by addresses in the cluster's window, and by generic ones.
__global__ void by_ptx(float* y, const float* x, const int*) {
  __shared__ float mine[64];
  const u32 threads = blockDim.x;
  mine[threadIdx.x] = x[blockIdx.x * threads + threadIdx.x];
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
  u32 count;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  float sum = 0;
  for (u32 peer = 0; peer < count; ++peer) {
    u32 mapped, owner;
    const float* pointer;
    const u32 own = tune::shared_address(mine);
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(own), "r"(peer));
    asm("mapa.u64 %0, %1, %2;" : "=l"(pointer) : "l"(mine), "r"(peer));
    asm("getctarank.u64 %0, %1;" : "=r"(owner) : "l"(pointer));
    for (u32 i = 0; i < threads; ++i) {
      float value;
      asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(mapped + 4 * i) : "memory");
      sum += owner == peer ? (value + pointer[i]) / 2 : -1;
    }
  }
  asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

#ifdef __CUDA_ON_HOST__
// Every block copies a row of x to all of them: twice to the same place, once all have read it.
__global__ void by_multicast(float* y, const float* x, const int* broken) {
  extern __shared__ __align__(128) float rows[];
  __shared__ unsigned long long barriers[2];
  const u32 rank = tune::cluster_rank(), threads = blockDim.x, count = tune::cluster_size();
  const u32 full = tune::shared_address(barriers), empty = full + 8;
  const auto map = tune::make_tensor_map<2>(x, 4, {threads, gridDim.x}, {4 * threads}, {threads, 1}, 0);
  const bool early = *broken == told_itself;
  if (threadIdx.x == 0) {
    tune::mbarrier_init(full, 1);
    tune::mbarrier_init(empty, early ? 1 : count);
    tune::fence_mbarrier_init();
  }
  tune::cluster_sync();
  float sum = 0;
  for (u32 twice = 0; twice < 2; ++twice) {
    if (threadIdx.x == 0) {
      if (twice) tune::mbarrier_wait(empty, 0);
      tune::mbarrier_arrive_expect_tx(full, count * threads * 4);
      const u32 to = tune::shared_address(rows + rank * threads);
      tune::tensor_multicast_2d(to, map, 0, blockIdx.x, full, (1 << count) - 1);
    }
    tune::mbarrier_wait(full, twice);
    for (u32 i = 0; i < count * threads; ++i) sum += rows[i];
    __syncthreads();
    if (early ? threadIdx.x == rank : threadIdx.x < count)
      tune::cluster_mbarrier_arrive(tune::map_shared(empty, threadIdx.x));
  }
  if (*broken != no_last_sync) tune::cluster_sync();
  if (threadIdx.x == 0) y[blockIdx.x] = sum / 2;
}
#endif
