// Tensor cores, asynchronous copies and barriers of `<tune/tensor.h>`, run on the CPU.
//
// A copy lands as late as its wait allows, and until then its destination holds NaN.
#pragma once

#include "../on_host/asynchronous.h"

namespace tune {

using u32 = unsigned int;
using u64 = unsigned long long;

struct bf16 {};
struct f16 {};
struct tf32 {};
struct e4m3 {};
struct e5m2 {};

constexpr cuda_on_host::OperandType narrow(bf16) { return cuda_on_host::OperandType::bf16; }
constexpr cuda_on_host::OperandType narrow(f16) { return cuda_on_host::OperandType::f16; }
constexpr cuda_on_host::OperandType narrow(tf32) { return cuda_on_host::OperandType::tf32; }
constexpr cuda_on_host::OperandType narrow(e4m3) { return cuda_on_host::OperandType::e4m3; }
constexpr cuda_on_host::OperandType narrow(e5m2) { return cuda_on_host::OperandType::e5m2; }

inline u32 shared_address(const void* pointer, ON_HOST_LINE) {
  return cuda_on_host::window_of(pointer, line);
}

template <int kCount>
void ldmatrix(u32 (&r)[kCount], u32 row, ON_HOST_LINE) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4, "1, 2 or 4 matrices");
  cuda_on_host::load_matrices(r, kCount, row, false, line);
}
template <int kCount>
void ldmatrix_trans(u32 (&r)[kCount], u32 row, ON_HOST_LINE) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4, "1, 2 or 4 matrices");
  cuda_on_host::load_matrices(r, kCount, row, true, line);
}

template <class T>
void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], ON_HOST_LINE) {
  cuda_on_host::multiply_in_warp(d, a, b, narrow(T()), line);
}
inline u32 to_tf32(float x) { return x != x ? 0x7FFFFFFF : (__float_as_uint(x) + 0x1000u) & ~0x1FFFu; }

template <int kBytes>
void cp_async(u32 to, const void* from, u32 from_bytes = kBytes, ON_HOST_LINE) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "4, 8 or 16 bytes");
  cuda_on_host::watch_source(from, from_bytes);
  cuda_on_host::copy_of_thread(to, from, kBytes, from_bytes, line);
}
inline void cp_async_commit() { cuda_on_host::commit_copies(); }
template <int kPending>
void cp_async_wait() {
  cuda_on_host::wait_for_copies(kPending);
}

inline void mbarrier_init(u32 barrier, u32 arrivals, ON_HOST_LINE) {
  cuda_on_host::init_mbarrier(barrier, arrivals, line);
}
inline void mbarrier_inval(u32 barrier, ON_HOST_LINE) { cuda_on_host::drop_mbarrier(barrier, line); }
inline void fence_mbarrier_init() { cuda_on_host::fence_asynchronous(); }
inline void fence_proxy_async() { cuda_on_host::fence_asynchronous(); }
inline void mbarrier_arrive(u32 barrier, ON_HOST_LINE) { cuda_on_host::arrive(barrier, 0, line); }
inline void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes, ON_HOST_LINE) {
  cuda_on_host::arrive(barrier, bytes, line);
}
inline bool mbarrier_try_wait(u32 barrier, u32 parity, ON_HOST_LINE) {
  return cuda_on_host::test_mbarrier(barrier, parity, line);
}
inline void mbarrier_wait(u32 barrier, u32 parity, ON_HOST_LINE) {
  cuda_on_host::wait_for_mbarrier(barrier, parity, line);
}

inline u64 l2_evict_first() { return 0; }
inline u64 l2_evict_last() { return 0; }

inline void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier, u64 = 0, ON_HOST_LINE) {
  cuda_on_host::watch_source(from, bytes);
  cuda_on_host::load_range(to, from, bytes, barrier, line);
}
inline void bulk_prefetch(const void*, u32) {}
inline void bulk_store(void* to, u32 from, u32 bytes, ON_HOST_LINE) {
  cuda_on_host::watch_source(to, bytes);
  cuda_on_host::store_range(to, from, bytes, line);
}
inline void bulk_commit() { cuda_on_host::commit_stores(); }
template <int kPending>
void bulk_wait_read() {
  cuda_on_host::wait_for_stores(kPending, false);
}
template <int kPending>
void bulk_wait() {
  cuda_on_host::wait_for_stores(kPending, true);
}

using TensorMap = cuda_on_host::TensorMap;

inline void tensor_prefetch_map(const TensorMap&) {}
inline void tensor_load_2d(u32 to, const TensorMap& map, int x, int y, u32 barrier, u64 = 0,
                           ON_HOST_LINE) {
  cuda_on_host::load_box(to, map, {2, {x, y, 0}}, barrier, line);
}
inline void tensor_load_3d(u32 to, const TensorMap& map, int x, int y, int z, u32 barrier, u64 = 0,
                           ON_HOST_LINE) {
  cuda_on_host::load_box(to, map, {3, {x, y, z}}, barrier, line);
}
inline void tensor_multicast_2d(u32 to, const TensorMap& map, int x, int y, u32 barrier, u32 blocks, ON_HOST_LINE) {
  cuda_on_host::multicast_box(to, map, {2, {x, y, 0}}, barrier, blocks, line);
}
inline void tensor_prefetch_2d(const TensorMap&, int, int) {}
inline void tensor_store_2d(const TensorMap& map, u32 from, int x, int y, ON_HOST_LINE) {
  cuda_on_host::store_box(map, from, {2, {x, y, 0}}, line);
}
inline void tensor_store_3d(const TensorMap& map, u32 from, int x, int y, int z, ON_HOST_LINE) {
  cuda_on_host::store_box(map, from, {3, {x, y, z}}, line);
}

inline void named_barrier_sync(u32 number, u32 threads, ON_HOST_LINE) {
  cuda_on_host::meet(number, threads, true, line);
}
inline void named_barrier_arrive(u32 number, u32 threads, ON_HOST_LINE) {
  cuda_on_host::meet(number, threads, false, line);
}

inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}

inline u32 cluster_rank() { return cuda_on_host::block_rank; }
inline u32 cluster_size() { return cuda_on_host::cluster_blocks; }
inline void cluster_arrive(ON_HOST_LINE) { cuda_on_host::arrive_at_cluster("cluster_arrive", true, line); }
inline void cluster_arrive_relaxed(ON_HOST_LINE) { cluster_arrive(line); }
inline void cluster_wait(ON_HOST_LINE) { cuda_on_host::wait_for_cluster("cluster_wait", line); }
inline void cluster_sync(ON_HOST_LINE) {
  cuda_on_host::arrive_at_cluster("cluster_sync", true, line);
  cuda_on_host::wait_for_cluster("cluster_sync", line);
}
inline u32 map_shared(u32 address, u32 rank, ON_HOST_LINE) { return cuda_on_host::map_to_peer(address, rank, line); }
inline float4 cluster_load(u32 mapped, ON_HOST_LINE) { return cuda_on_host::load_from_peer(mapped, line); }
inline void cluster_mbarrier_arrive(u32 mapped, ON_HOST_LINE) { cuda_on_host::arrive_at_peer(mapped, line); }
inline void cluster_store_async(u32 mapped, float4 value, u32 barrier, ON_HOST_LINE) {
  cuda_on_host::store_late(mapped, value, barrier, line);
}

// Clusters run one after another: what waits for a later one waits forever.
inline u32 atomic_add_acq_rel(u32* address, u32 value, ON_HOST_LINE) {
  return atomicAdd(address, value, line);
}
inline void add_release(u32* address, u32 value, ON_HOST_LINE) { atomicAdd(address, value, line); }
inline u32 load_acquire(const u32* address, ON_HOST_LINE) {
  cuda_on_host::check_address(address, line);
  const u32 found = *address;
  cuda_on_host::let_others_run();
  return found;
}
inline void store_release(u32* address, u32 value, ON_HOST_LINE) { __stcg(address, value, line); }

}  // namespace tune
