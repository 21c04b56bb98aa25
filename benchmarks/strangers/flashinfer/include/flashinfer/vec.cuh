#ifndef FLASHINFER_VEC_CUH_
#define FLASHINFER_VEC_CUH_
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

namespace flashinfer {

#define FLASHINFER_INLINE inline __attribute__((always_inline)) __device__

template <typename T, size_t N>
struct alignas(sizeof(T) * N) pack_t {
  static_assert(N % 2 == 0, "a pack's width has to be even");
  T data[N];
  FLASHINFER_INLINE T& operator[](size_t i) { return data[i]; }
  FLASHINFER_INLINE const T& operator[](size_t i) const { return data[i]; }
  FLASHINFER_INLINE void load(const T* ptr) { *this = *reinterpret_cast<const pack_t*>(ptr); }
  FLASHINFER_INLINE void store(T* ptr) const { *reinterpret_cast<pack_t*>(ptr) = *this; }
};

}  // namespace flashinfer
#endif  // FLASHINFER_VEC_CUH_
