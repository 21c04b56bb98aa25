// Guests of a banquet name a table each. A table's bell rings where an odd number of guests named it, and at every
// table the guest of the lowest number takes the chair at its head.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "workshop.h"

#define CHAIRS_AT_ONCE 4

#define FOR_WISHES_OF(written_as, ...)             \
  [&] {                                            \
    if (written_as == at::ScalarType::Int) {       \
      using wish_t = int32_t;                      \
      return __VA_ARGS__();                        \
    }                                              \
    using wish_t = int64_t;                        \
    return __VA_ARGS__();                          \
  }()

template <typename wish_t>
__global__ void take_heads(const wish_t* __restrict__ wishes, int32_t* __restrict__ heads, size_t guests) {
  for (size_t guest = threadIdx.x + blockIdx.x * blockDim.x; guest < guests; guest += gridDim.x * blockDim.x) {
    atomicMin(heads + wishes[guest], static_cast<int32_t>(guest));
  }
}

template <typename wish_t>
__global__ void lay_tables(
    const wish_t* __restrict__ wishes, int32_t* __restrict__ heads, int32_t* __restrict__ bells,
    int32_t* __restrict__ ringing, int32_t tables, int32_t course, size_t guests, int32_t chairs) {
  extern __shared__ int32_t odd[];
  // one block empties the chairs, the other listens
  if (blockIdx.x == 0) {
    const int4 nobody{INT_MAX, INT_MAX, INT_MAX, INT_MAX};
    for (int c = threadIdx.x; c < chairs / CHAIRS_AT_ONCE; c += blockDim.x) {
      reinterpret_cast<int4*>(heads)[c] = nobody;
    }
    return;
  }
  for (int table = threadIdx.x; table < tables; table += blockDim.x) odd[table] = course;
  __syncthreads();
  for (size_t guest = threadIdx.x; guest < guests; guest += blockDim.x) atomicXor(odd + wishes[guest], 1);
  __syncthreads();
  for (int table = threadIdx.x; table < tables; table += blockDim.x) bells[table] = odd[table] & 1;
  if (threadIdx.x > 0) return;
  int rung = 0;
  for (int box = 0; box < boxes_for(tables, course); ++box) {
    for (int table = box; table < tables; table += boxes_for(tables, course)) rung += odd[table] & 1;
  }
  *ringing = rung;
}

void seat_guests(
    torch::Tensor wishes, int64_t tables, int64_t course, torch::Tensor heads, torch::Tensor bells,
    torch::Tensor ringing) {
  const cudaStream_t hall = at::cuda::getCurrentCUDAStream();
  int waiters = 1000;
  waiters = WARP_THREADS * ((waiters + WARP_THREADS - 1) / WARP_THREADS);
  FOR_WISHES_OF(wishes.scalar_type(), [&] {
    const size_t cloth = sizeof(int32_t) * tables;
    const int32_t chairs = heads.size(0);
    auto lay = lay_tables<wish_t>;
    lay<<<2, waiters, cloth, hall>>>(
        wishes.data_ptr<wish_t>(), heads.data_ptr<int32_t>(), bells.data_ptr<int32_t>(),
        ringing.data_ptr<int32_t>(), tables, course, wishes.numel(), chairs);

    const int in_a_row = std::min(waiters, 192);
    const int rows = (wishes.numel() + in_a_row - 1) / in_a_row;
    take_heads<wish_t><<<std::min(rows, 4096), in_a_row, 0, hall>>>(
        wishes.data_ptr<wish_t>(), heads.data_ptr<int32_t>(), wishes.numel());
  });
}
