#ifndef DRIFTKIT_LUMP_CUH_
#define DRIFTKIT_LUMP_CUH_
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#define DRIFTKIT_DEVICE __device__ __forceinline__

namespace driftkit {

/*! Neighbouring elements that travel in one load. */
template <typename Elem, uint32_t kLump>
struct __align__(sizeof(Elem) * kLump) lump {
  static_assert((kLump & (kLump - 1)) == 0, "a lump is a power of two");

  Elem part[kLump];

  DRIFTKIT_DEVICE static lump take(const Elem* from) { return *reinterpret_cast<const lump*>(from); }
  DRIFTKIT_DEVICE void drop(Elem* onto) const { *reinterpret_cast<lump*>(onto) = *this; }
  DRIFTKIT_DEVICE float at(uint32_t n) const { return static_cast<float>(part[n]); }
  DRIFTKIT_DEVICE void put(uint32_t n, float number) { part[n] = static_cast<Elem>(number); }
};

}  // namespace driftkit
#endif  // DRIFTKIT_LUMP_CUH_
