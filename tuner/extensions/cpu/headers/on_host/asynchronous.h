// What `<tune/tensor.h>` asks of the runtime: copies that land late, mbarriers, matrices.
#pragma once

#include "../cuda_on_host.h"

namespace cuda_on_host {

enum class OperandType { bf16, f16, tf32, e4m3, e5m2 };

// What stands for a CUtensorMap on the CPU: as many bytes, filled by the process that launches.
// Element i along dimension k (0 is the innermost) lies `strides[k - 1] * i` bytes on; sizes and
// box are in elements, `swizzle` is 0, 32, 64 or 128 bytes. Keep equal to where maps are made.
struct alignas(64) TensorMap {
  unsigned long long magic;
  void* address;
  unsigned rank, element_bytes, swizzle, unused;
  unsigned long long sizes[5], strides[4];
  unsigned box[5];
};
static_assert(sizeof(TensorMap) == 128, "as large as a CUtensorMap");
constexpr unsigned long long kTensorMap = 0x70616d726f736e74;  // "tnsormap"

struct Corner {
  unsigned rank;
  int at[3];
};

// One wgmma of one thread: a in shared memory (`a` is its descriptor), or the two rows that the
// thread needs of it in `rows`, 32 bytes each.
struct Multiply {
  float* d;
  int columns;
  OperandType type;
  bool accumulate, from_shared;
  unsigned long long a, b;
  unsigned rows[2][8];
  int line;
};

#pragma GCC visibility push(hidden)

void copy_of_thread(unsigned to, const void* from, unsigned bytes, unsigned from_bytes, int line);
void commit_copies();
void wait_for_copies(unsigned pending);

void init_mbarrier(unsigned address, unsigned arrivals, int line);
void drop_mbarrier(unsigned address, int line);
void arrive(unsigned address, unsigned bytes, int line);
void arrive_at_peer(unsigned mapped, int line);
void expect_bytes(unsigned address, unsigned bytes, int line);
unsigned phase_of_mbarrier(unsigned address, int line);
bool test_mbarrier(unsigned address, unsigned parity, int line);
void wait_for_mbarrier(unsigned address, unsigned parity, int line);
void fence_asynchronous();
void meet(unsigned number, unsigned wanted, bool wait, int line);

void load_range(unsigned to, const void* from, unsigned bytes, unsigned barrier, int line);
void load_box(unsigned to, const TensorMap& map, Corner corner, unsigned barrier, int line);
void multicast_box(unsigned to, const TensorMap& map, Corner corner, unsigned barrier, unsigned blocks, int line);
void store_late(unsigned to, float4 value, unsigned barrier, int line);
float4 load_from_peer(unsigned mapped, int line);
unsigned map_to_peer(unsigned address, unsigned rank, int line);
void store_range(void* to, unsigned from, unsigned bytes, int line);
void store_box(const TensorMap& map, unsigned from, Corner corner, int line);
void commit_stores();
void wait_for_stores(unsigned pending, bool written);

void load_matrices(unsigned* r, int count, unsigned row, bool transposed, int line);
void multiply_in_warp(float* d, const unsigned* a, const unsigned* b, OperandType type, int line);
void gather_rows(Multiply& one, const unsigned* a);
void multiply_later(const Multiply& one);
void fence_multiplies(int line);
void commit_multiplies(int line);
void wait_for_multiplies(unsigned pending, int line);

#pragma GCC visibility pop

// The runtime's accesses are not watched by the address sanitizer; those of the kernel's unit are.
__forceinline__ void watch_source(const void* from, size_t bytes) {
  if (!bytes) return;
  const volatile char* const first = static_cast<const volatile char*>(from);
  (void)first[0];
  (void)first[bytes - 1];
}

}  // namespace cuda_on_host

namespace tune {

// Make a map on the CPU, where a kernel is tried out by itself: strides of the dimensions but the
// innermost in bytes, the rest in elements.
template <int kRank>
cuda_on_host::TensorMap make_tensor_map(const void* address, unsigned element_bytes,
                                        const unsigned long long (&sizes)[kRank],
                                        const unsigned long long (&strides)[kRank - 1],
                                        const unsigned (&box)[kRank], unsigned swizzle) {
  cuda_on_host::TensorMap map = {};
  map.magic = cuda_on_host::kTensorMap;
  map.address = const_cast<void*>(address);
  map.rank = kRank;
  map.element_bytes = element_bytes;
  map.swizzle = swizzle;
  for (int i = 0; i < kRank; ++i) map.sizes[i] = sizes[i], map.box[i] = box[i];
  for (int i = 0; i + 1 < kRank; ++i) map.strides[i] = strides[i];
  return map;
}

}  // namespace tune
