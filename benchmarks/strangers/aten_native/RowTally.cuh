#pragma once

#include <ATen/cuda/DeviceUtils.cuh>
#include <c10/macros/Macros.h>

namespace at::native::tally {

struct Farther {
  template <typename V>
  __device__ V operator()(V one, V two) const {
    return two > one ? two : one;
  }
};

struct Together {
  template <typename V>
  __device__ V operator()(V one, V two) const {
    return one + two;
  }
};

// Every thread of the block gets what all of them make of their parts; the board has room for a part a warp.
template <typename V, typename Join>
__device__ V across_block(V part, V* board, Join join, V nothing) {
  const int warp = threadIdx.x / C10_WARP_SIZE;
  for (int apart = 1; apart < C10_WARP_SIZE; apart *= 2) {
    part = join(part, WARP_SHFL_XOR(part, apart));
  }
  if (threadIdx.x % C10_WARP_SIZE == 0) board[warp] = part;
  __syncthreads();
  V whole = nothing;
  for (int each = 0; each < blockDim.x / C10_WARP_SIZE; ++each) whole = join(whole, board[each]);
  __syncthreads();
  return whole;
}

} // namespace at::native::tally
