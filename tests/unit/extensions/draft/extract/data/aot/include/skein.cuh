#ifndef WORKSHOP_SKEIN_CUH
#define WORKSHOP_SKEIN_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace skein {

// How many bytes a thread pulls at once.
constexpr int kPullBytes = 16;

// Neighbours that are pulled from memory and laid back together.
template <typename Yarn, int COUNT>
struct alignas(sizeof(Yarn) * COUNT) Skein {
  Yarn ends[COUNT];

  __device__ __forceinline__ Yarn& operator[](int end) { return ends[end]; }
  __device__ __forceinline__ const Yarn& operator[](int end) const { return ends[end]; }

  static __device__ __forceinline__ Skein pulled(const Yarn* sheet) {
    return reinterpret_cast<const Skein*>(sheet)[0];
  }
  __device__ __forceinline__ void laid(Yarn* sheet) const { reinterpret_cast<Skein*>(sheet)[0] = *this; }
};

// The same number, spun as another type.
template <typename Into, typename Out>
__device__ __forceinline__ Into spun(Out number) {
  return static_cast<Into>(number);
}

template <>
__device__ __forceinline__ float spun<float, half>(half number) {
  return __half2float(number);
}

template <>
__device__ __forceinline__ half spun<half, float>(float number) {
  return __float2half_rn(number);
}

template <>
__device__ __forceinline__ float spun<float, __nv_bfloat16>(__nv_bfloat16 number) {
  return __bfloat162float(number);
}

template <>
__device__ __forceinline__ __nv_bfloat16 spun<__nv_bfloat16, float>(float number) {
  return __float2bfloat16_rn(number);
}

// Nobody here needs it.
template <typename Yarn>
__device__ __forceinline__ Yarn glimpsed(const Yarn* sheet) {
  return __ldcs(sheet);
}

}  // namespace skein

#endif
