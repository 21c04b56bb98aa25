#include <torch/all.h>

#include "guards.h"

namespace fold {

struct Claim {
  float height;
  int slot;
};

__device__ __forceinline__ bool outbids(const Claim& one, const Claim& other) {
  return one.height > other.height || (one.height == other.height && one.slot < other.slot);
}

// Picks the highest slots of a token one after another, none nearer than `gap` to one before it.
template <int kBidders>
__launch_bounds__(kBidders) __global__ void spaced_picks_kernel(
    int32_t* picked,        // a row of `picks` a token; -1 where no slot is left
    float* heights,         // likewise; 0 where no slot is left
    const float* terrain,   // a row of `slots` a token
    const int picks,
    const int slots,
    const int gap,
    const bool relative) {
  __shared__ Claim claims[kBidders];
  const int me = threadIdx.x;
  picked += blockIdx.x * picks;
  heights += blockIdx.x * picks;
  terrain += blockIdx.x * slots;
  float tallest = 1.f;
  for (int turn = 0; turn < picks; ++turn) {
    Claim mine{-INFINITY, slots};
    for (int slot = me; slot < slots; slot += kBidders) {
      int crowding = 0;
      for (int before = 0; before < turn; ++before) {
        if (picked[before] >= 0) crowding += abs(picked[before] - slot) < gap;
      }
      const Claim next{terrain[slot], slot};
      if (crowding == 0 && outbids(next, mine)) mine = next;
    }
    claims[me] = mine;
    for (int apart = 1; apart < kBidders; apart *= 2) {
      __syncthreads();
      if (me % (2 * apart) == 0 && outbids(claims[me + apart], claims[me])) claims[me] = claims[me + apart];
    }
    __syncthreads();
    const Claim won = claims[0];
    if (relative && turn == 0) tallest = won.height;
    if (me == 0) {
      picked[turn] = won.slot < slots ? won.slot : -1;
      heights[turn] = won.slot < slots ? won.height / tallest : 0.f;
    }
    __syncthreads();
  }
}

template <int kBidders>
void auction(
    at::Tensor& picked, at::Tensor& heights, const at::Tensor& terrain, int tokens, int gap, bool relative) {
  const auto stream = at::cuda::getCurrentCUDAStream();
  spaced_picks_kernel<kBidders><<<tokens, kBidders, 0, stream>>>(
      picked.data_ptr<int32_t>(), heights.data_ptr<float>(), terrain.data_ptr<float>(), picked.size(-1),
      terrain.size(-1), gap, relative);
}

}  // namespace fold

void spaced_picks(
    torch::Tensor& picked, torch::Tensor& heights, torch::Tensor& terrain, int64_t gap, bool relative) {
  MUST_LIE_DENSE_ON_GPU(terrain);
  const int slots = terrain.size(-1), tokens = terrain.numel() / slots;
  if (slots > 512) {
    fold::auction<256>(picked, heights, terrain, tokens, gap, relative);
  } else if (slots > 64) {
    fold::auction<128>(picked, heights, terrain, tokens, gap, relative);
  } else {
    fold::auction<32>(picked, heights, terrain, tokens, gap, relative);
  }
}
