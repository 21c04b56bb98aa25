#ifndef DRIFTKIT_WARP_CUH_
#define DRIFTKIT_WARP_CUH_
#include <cuda_runtime.h>

#include <cstdint>

namespace driftkit {
namespace warp {

constexpr uint32_t kLanes = 32;

struct range {
  float low, high;
};

__device__ __forceinline__ range join(range a, range b) {
  return {fminf(a.low, b.low), fmaxf(a.high, b.high)};
}

__device__ __forceinline__ float from_partner(float mine, uint32_t hop) {
  return __shfl_xor_sync(~0u, mine, hop);
}

__device__ __forceinline__ float total(float mine) {
  for (uint32_t hop = 1; hop < kLanes; hop <<= 1) mine += from_partner(mine, hop);
  return mine;
}

__device__ __forceinline__ range extent(range mine) {
  for (uint32_t hop = 1; hop < kLanes; hop <<= 1) {
    mine = join(mine, range{from_partner(mine.low, hop), from_partner(mine.high, hop)});
  }
  return mine;
}

}  // namespace warp
}  // namespace driftkit
#endif  // DRIFTKIT_WARP_CUH_
