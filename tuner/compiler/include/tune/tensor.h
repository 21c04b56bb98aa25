// Tensor cores, asynchronous copies and barriers: each function is one instruction of PTX.
//
// The `host` device of `tune` has a header of this name that runs them on the CPU. Addresses of
// shared memory are 32 bits, from `shared_address`. SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TUNE_HAS_SM90 true
#else
#define TUNE_HAS_SM90 false
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define TUNE_HAS_SM80 true
#else
#define TUNE_HAS_SM80 false
#endif
#define TUNE_DEVICE __device__ __forceinline__
// A template, so that only who calls it has to have the instruction.
#define TUNE_SM80 template <bool kThere = TUNE_HAS_SM80> TUNE_DEVICE
#define TUNE_SM90 template <bool kThere = TUNE_HAS_SM90> TUNE_DEVICE
#define TUNE_NEEDS_SM80 static_assert(kThere, "this needs compute capability 8.0 (Ampere) or later")
#define TUNE_NEEDS_SM90 static_assert(kThere, "this needs compute capability 9.0 (Hopper) or later")

namespace tune {

using u32 = unsigned int;
using u64 = unsigned long long;

// Types of operands.
struct bf16 {};
struct f16 {};
struct tf32 {};
struct e4m3 {};
struct e5m2 {};

TUNE_DEVICE u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Every eight lanes give the addresses of one 8x8 matrix of 16-bit numbers.
TUNE_DEVICE void ldmatrix(u32 (&r)[1], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row) : "memory");
}
TUNE_DEVICE void ldmatrix(u32 (&r)[2], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");
}
TUNE_DEVICE void ldmatrix(u32 (&r)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
TUNE_DEVICE void ldmatrix_trans(u32 (&r)[1], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row) : "memory");
}
TUNE_DEVICE void ldmatrix_trans(u32 (&r)[2], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");
}
TUNE_DEVICE void ldmatrix_trans(u32 (&r)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}

// d += a * b of a warp: 16 x 8, and 16 of K for 16-bit types, 32 for fp8 (from 8.9 on), 8 for TF32,
// whose operands are floats of which the low 13 bits do not count.
#define TUNE_MMA(TYPE, SHAPE)                                                                     \
  TUNE_DEVICE void mma_as(TYPE, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {            \
    asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." #TYPE "." #TYPE                        \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"           \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));             \
  }
TUNE_MMA(bf16, "m16n8k16")
TUNE_MMA(f16, "m16n8k16")
TUNE_MMA(tf32, "m16n8k8")
TUNE_MMA(e4m3, "m16n8k32")
TUNE_MMA(e5m2, "m16n8k32")
#undef TUNE_MMA
template <class T, bool kThere = TUNE_HAS_SM80>
TUNE_DEVICE void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  TUNE_NEEDS_SM80;
  mma_as(T(), d, a, b);
}
// Rounded to the nearest: what tensor cores make of a float by themselves is cut off.
TUNE_SM80 u32 to_tf32(float x) {
  TUNE_NEEDS_SM80;
  u32 r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

// Copies of a thread: what is past `from_bytes` is filled with zeros.
template <int kBytes, bool kThere = TUNE_HAS_SM80>
TUNE_DEVICE void cp_async(u32 to, const void* from, u32 from_bytes = kBytes) {
  TUNE_NEEDS_SM80;
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "4, 8 or 16 bytes");
  if (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(from_bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(to), "l"(from), "n"(kBytes == 16 ? 8 : kBytes), "r"(from_bytes) : "memory");
}
TUNE_SM80 void cp_async_commit() {
  TUNE_NEEDS_SM80;
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// All groups but the last `kPending` are there, for the thread that copied them.
template <int kPending, bool kThere = TUNE_HAS_SM80>
TUNE_DEVICE void cp_async_wait() {
  TUNE_NEEDS_SM80;
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Barriers in shared memory: 8 bytes, 8-byte aligned.
TUNE_SM90 void mbarrier_init(u32 barrier, u32 arrivals) {
  TUNE_NEEDS_SM90;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
TUNE_SM90 void mbarrier_inval(u32 barrier) {
  TUNE_NEEDS_SM90;
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// What was initialized is seen by asynchronous copies (and by the cluster).
TUNE_SM90 void fence_mbarrier_init() {
  TUNE_NEEDS_SM90;
  asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
// What threads wrote to shared memory is seen by wgmma and by bulk and tensor stores.
TUNE_SM90 void fence_proxy_async() {
  TUNE_NEEDS_SM90;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
TUNE_SM90 void mbarrier_arrive(u32 barrier) {
  TUNE_NEEDS_SM90;
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
TUNE_SM90 void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  TUNE_NEEDS_SM90;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Whether the phase of this parity (0 for the first) is complete.
TUNE_SM90 bool mbarrier_try_wait(u32 barrier, u32 parity) {
  TUNE_NEEDS_SM90;
  u32 done;
  asm volatile(
      "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
}
TUNE_SM90 void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_try_wait<kThere>(barrier, parity)) {
  }
}

// Policies for the loads below: what to drop from the L2 first, and last.
TUNE_SM80 u64 l2_evict_first() {
  TUNE_NEEDS_SM80;
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
TUNE_SM80 u64 l2_evict_last() {
  TUNE_NEEDS_SM80;
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copies of whole ranges: addresses and sizes are multiples of 16 bytes; one thread asks.
TUNE_SM90 void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
TUNE_SM90 void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
TUNE_SM90 void bulk_prefetch(const void* from, u32 bytes) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
TUNE_SM90 void bulk_store(void* to, u32 from, u32 bytes) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
// Stores of a thread are waited for in groups: until they have read, and until they have written.
TUNE_SM90 void bulk_commit() {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int kPending, bool kThere = TUNE_HAS_SM90>
TUNE_DEVICE void bulk_wait_read() {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending, bool kThere = TUNE_HAS_SM90>
TUNE_DEVICE void bulk_wait() {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// The driver's CUtensorMap; a kernel takes it as `const __grid_constant__ tune::TensorMap`.
struct alignas(64) TensorMap {
  u64 opaque[16];
};
TUNE_SM90 void tensor_prefetch_map(const TensorMap& map) {
  TUNE_NEEDS_SM90;
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Boxes of 2 and 3 dimensions, at `x` along the innermost; what lies outside is zero.
TUNE_SM90 void tensor_load_2d(u32 to, const TensorMap& map, int x, int y, u32 barrier) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
TUNE_SM90 void tensor_load_2d(u32 to, const TensorMap& map, int x, int y, u32 barrier, u64 policy) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier), "l"(policy) : "memory");
}
TUNE_SM90 void tensor_load_3d(u32 to, const TensorMap& map, int x, int y, int z, u32 barrier) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
               ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}
TUNE_SM90 void tensor_load_3d(u32 to, const TensorMap& map, int x, int y, int z, u32 barrier, u64 policy) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%2, %3, %4}], [%5], %6;"
               ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy) : "memory");
}
// A box into several blocks of the cluster, each where `to` is in its own memory; the mbarriers at the
// place of `barrier` count it. Bit i of `blocks` is the block of rank i.
TUNE_SM90 void tensor_multicast_2d(u32 to, const TensorMap& map, int x, int y, u32 barrier, u32 blocks) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(static_cast<unsigned short>(blocks)) : "memory");
}
TUNE_SM90 void tensor_prefetch_2d(const TensorMap& map, int x, int y) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(x), "r"(y) : "memory");
}
TUNE_SM90 void tensor_store_2d(const TensorMap& map, u32 from, int x, int y) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               ::"l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
}
TUNE_SM90 void tensor_store_3d(const TensorMap& map, u32 from, int x, int y, int z) {
  TUNE_NEEDS_SM90;
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
               ::"l"(&map), "r"(x), "r"(y), "r"(z), "r"(from) : "memory");
}

// Some threads of a block meet, whole warps: `threads` in all, of those that arrive and that wait.
TUNE_DEVICE void named_barrier_sync(u32 number, u32 threads) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
TUNE_DEVICE void named_barrier_arrive(u32 number, u32 threads) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// The kernel before has ended and its results are seen; the next may begin.
TUNE_SM90 void griddepcontrol_wait() {
  TUNE_NEEDS_SM90;
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
TUNE_SM90 void griddepcontrol_launch_dependents() {
  TUNE_NEEDS_SM90;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

TUNE_SM90 u32 cluster_rank() {
  TUNE_NEEDS_SM90;
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Blocks of the cluster.
TUNE_SM90 u32 cluster_size() {
  TUNE_NEEDS_SM90;
  u32 blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
TUNE_SM90 void cluster_arrive() {
  TUNE_NEEDS_SM90;
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Shows nothing but barriers that a `fence_mbarrier_init` followed; `cluster_arrive` waits for all stores.
TUNE_SM90 void cluster_arrive_relaxed() {
  TUNE_NEEDS_SM90;
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
TUNE_SM90 void cluster_wait() {
  TUNE_NEEDS_SM90;
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
TUNE_SM90 void cluster_sync() {
  cluster_arrive<kThere>();
  cluster_wait<kThere>();
}
// The address of another block's shared memory, for the functions below.
TUNE_SM90 u32 map_shared(u32 address, u32 rank) {
  TUNE_NEEDS_SM90;
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
TUNE_SM90 float4 cluster_load(u32 mapped) {
  TUNE_NEEDS_SM90;
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(mapped) : "memory");
  return v;
}
// For places that were read, and that copies may fill again: what this thread wrote it shows to nobody of
// another block. `.release.cluster` would, but waits for all of the thread's stores, global ones too.
TUNE_SM90 void cluster_mbarrier_arrive(u32 mapped) {
  TUNE_NEEDS_SM90;
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}
// 16 bytes into another block; its mbarrier, mapped too, counts them.
TUNE_SM90 void cluster_store_async(u32 mapped, float4 v, u32 barrier) {
  TUNE_NEEDS_SM90;
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(mapped), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier) : "memory");
}

// Semaphores in global memory, between blocks.
TUNE_SM80 u32 atomic_add_acq_rel(u32* address, u32 value) {
  TUNE_NEEDS_SM80;
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(value) : "memory");
  return before;
}
TUNE_SM80 void add_release(u32* address, u32 value) {
  TUNE_NEEDS_SM80;
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
TUNE_SM80 u32 load_acquire(const u32* address) {
  TUNE_NEEDS_SM80;
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
TUNE_SM80 void store_release(u32* address, u32 value) {
  TUNE_NEEDS_SM80;
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace tune
