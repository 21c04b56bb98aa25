// Cooperative groups: a cluster, a block, tiles of a warp, and the lanes that are active together.
//
// Not here: `grid.sync()` and tiles of more than a warp.
#pragma once

#include "cuda_on_host.h"

namespace cooperative_groups {

struct thread_block {
  static void sync(ON_HOST_LINE) { __syncthreads(line); }
  static unsigned thread_rank() { return cuda_on_host::current; }
  static unsigned size() { return cuda_on_host::thread_count; }
  static unsigned num_threads() { return cuda_on_host::thread_count; }
  static dim3 group_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
  static dim3 thread_index() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

struct cluster_group {
  struct arrival_token {};
  static void sync(ON_HOST_LINE) {
    cuda_on_host::arrive_at_cluster("cluster.sync", false, line);
    cuda_on_host::wait_for_cluster("cluster.sync", line);
  }
  static arrival_token barrier_arrive(ON_HOST_LINE) {
    cuda_on_host::arrive_at_cluster("barrier_arrive", false, line);
    return {};
  }
  static void barrier_wait(ON_HOST_LINE) { cuda_on_host::wait_for_cluster("barrier_wait", line); }
  static void barrier_wait(arrival_token&&, ON_HOST_LINE) { barrier_wait(line); }
  static unsigned block_rank() { return cuda_on_host::block_rank; }
  static unsigned num_blocks() { return cuda_on_host::cluster_blocks; }
  static dim3 dim_blocks() { return cuda_on_host::cluster_dim; }
  static dim3 group_dim() { return cuda_on_host::cluster_dim; }
  static dim3 block_index() {
    const uint3& first = cuda_on_host::cluster_first;
    return {blockIdx.x - first.x, blockIdx.y - first.y, blockIdx.z - first.z};
  }
  static unsigned thread_rank() { return block_rank() * cuda_on_host::thread_count + cuda_on_host::current; }
  static unsigned num_threads() { return num_blocks() * cuda_on_host::thread_count; }
  static unsigned size() { return num_threads(); }
  template <class T>
  static T* map_shared_rank(T* pointer, int rank, ON_HOST_LINE) {
    return static_cast<T*>(cuda_on_host::peer_of(pointer, static_cast<unsigned>(rank), line));
  }
  static unsigned query_shared_rank(const void* pointer, ON_HOST_LINE) { return cuda_on_host::rank_of(pointer, line); }
};
inline cluster_group this_cluster() { return {}; }

struct grid_group {
  static unsigned long long block_rank() {
    return blockIdx.x + 1ull * gridDim.x * (blockIdx.y + 1ull * gridDim.y * blockIdx.z);
  }
  static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
  static unsigned long long thread_rank() {
    return block_rank() * cuda_on_host::thread_count + cuda_on_host::current;
  }
  static unsigned long long size() { return num_blocks() * cuda_on_host::thread_count; }
  static unsigned long long num_threads() { return size(); }
  static dim3 group_dim() { return gridDim; }
};
inline grid_group this_grid() { return {}; }

// Lanes of one warp; ranks are counted among those of the mask.
class thread_group {
 public:
  explicit thread_group(unsigned mask) : mask_(mask) {}
  void sync(ON_HOST_LINE) const { __syncwarp(mask_, line); }
  unsigned thread_rank() const { return rank_of(lane()); }
  unsigned size() const { return __popc(mask_); }
  unsigned num_threads() const { return size(); }
  int any(int holds, ON_HOST_LINE) const { return __any_sync(mask_, holds, line); }
  int all(int holds, ON_HOST_LINE) const { return __all_sync(mask_, holds, line); }
  unsigned ballot(int holds, ON_HOST_LINE) const { return packed(__ballot_sync(mask_, holds, line)); }
  template <class T>
  unsigned match_any(T value, ON_HOST_LINE) const { return packed(__match_any_sync(mask_, value, line)); }
  template <class T>
  T shfl(T value, unsigned rank, ON_HOST_LINE) const {
    return __shfl_sync(mask_, value, lane_of(rank % size()), 32, line);
  }
  template <class T>
  T shfl_up(T value, unsigned by, ON_HOST_LINE) const {
    const unsigned me = thread_rank();
    return __shfl_sync(mask_, value, lane_of(me >= by ? me - by : me), 32, line);
  }
  template <class T>
  T shfl_down(T value, unsigned by, ON_HOST_LINE) const {
    const unsigned me = thread_rank();
    return __shfl_sync(mask_, value, lane_of(me + by < size() ? me + by : me), 32, line);
  }
  template <class T>
  T shfl_xor(T value, unsigned by, ON_HOST_LINE) const {
    const unsigned other = thread_rank() ^ by;
    return __shfl_sync(mask_, value, lane_of(other < size() ? other : thread_rank()), 32, line);
  }

 protected:
  static unsigned lane() { return cuda_on_host::lane_of(cuda_on_host::current); }
  unsigned rank_of(unsigned lane) const { return __popc(mask_ & ((1u << lane) - 1)); }
  int lane_of(unsigned rank) const {
    for (unsigned one = 0; one < 32; ++one)
      if ((mask_ >> one & 1) && rank-- == 0) return static_cast<int>(one);
    return 0;
  }
  unsigned packed(unsigned lanes) const {
    unsigned found = 0;
    for (unsigned one = 0; one < 32; ++one)
      if (lanes >> one & 1) found |= 1u << rank_of(one);
    return found;
  }
  unsigned mask_;
};

template <unsigned N, class Parent = void>
struct thread_block_tile : thread_group {
  static_assert(N <= 32 && (N & (N - 1)) == 0, "the CPU has tiles of up to 32 threads alone");
  thread_block_tile() : thread_group((N == 32 ? ~0u : (1u << N % 32) - 1) << lane() / N * N) {}
  template <class Other>
  thread_block_tile(const thread_block_tile<N, Other>& other) : thread_group(other) {}
  static unsigned meta_group_rank() { return cuda_on_host::current / N; }
  static unsigned meta_group_size() { return (cuda_on_host::thread_count + N - 1) / N; }
  static constexpr unsigned size() { return N; }
  static constexpr unsigned num_threads() { return N; }
};

template <unsigned N, class Parent>
thread_block_tile<N, Parent> tiled_partition(const Parent&) { return {}; }

inline thread_group tiled_partition(const thread_block&, unsigned size) {
  const unsigned lane = cuda_on_host::lane_of(cuda_on_host::current);
  return thread_group((size >= 32 ? ~0u : (1u << size) - 1) << lane / size * size);
}

struct coalesced_group : thread_group {
  using thread_group::thread_group;
};
// The lanes that have not ended, as `__activemask()`.
inline coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

template <class Group>
void sync(const Group& group, ON_HOST_LINE) { group.sync(line); }
template <class Group>
unsigned thread_rank(const Group& group) { return static_cast<unsigned>(group.thread_rank()); }

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

// Of all ranks, in pairs as on a GPU; every thread gets the result.
template <class Group, class T, class Op>
T reduce(const Group& group, T value, Op op, ON_HOST_LINE) {
  for (unsigned step = 1; step < group.size(); step *= 2) {
    const T other = group.shfl_down(value, step, line);
    const unsigned me = group.thread_rank();
    if (me % (2 * step) == 0 && me + step < group.size()) value = op(value, other);
  }
  return group.shfl(value, 0, line);
}

template <class Group, class T, class Op>
T inclusive_scan(const Group& group, T value, Op op, ON_HOST_LINE) {
  for (unsigned step = 1; step < group.size(); step *= 2) {
    const T other = group.shfl_up(value, step, line);
    if (group.thread_rank() >= step) value = op(other, value);
  }
  return value;
}
template <class Group, class T>
T inclusive_scan(const Group& group, T value, ON_HOST_LINE) {
  return inclusive_scan(group, value, plus<T>(), line);
}
template <class Group, class T>
T exclusive_scan(const Group& group, T value, ON_HOST_LINE) {
  const T before = group.shfl_up(inclusive_scan(group, value, plus<T>(), line), 1, line);
  return group.thread_rank() ? before : T();
}

}  // namespace cooperative_groups
