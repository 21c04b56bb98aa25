#ifndef PACKED_CUH_
#define PACKED_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace packed {

// How many bytes one access moves.
constexpr int kAccessBytes = 16;

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];

  __device__ __forceinline__ T& operator[](int i) { return values[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return values[i]; }

  __device__ __forceinline__ void load(const T* from) { *this = *reinterpret_cast<const Pack*>(from); }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<Pack*>(to) = *this; }
};

template <typename To, typename From>
__device__ __forceinline__ To converted(From value) {
  return static_cast<To>(value);
}

template <>
__device__ __forceinline__ float converted<float, half>(half value) {
  return __half2float(value);
}

template <>
__device__ __forceinline__ half converted<half, float>(float value) {
  return __float2half_rn(value);
}

template <>
__device__ __forceinline__ float converted<float, __nv_bfloat16>(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <>
__device__ __forceinline__ __nv_bfloat16 converted<__nv_bfloat16, float>(float value) {
  return __float2bfloat16_rn(value);
}

// Not used by anyone here.
template <typename T>
__device__ __forceinline__ T streamed(const T* from) {
  return __ldcs(from);
}

}  // namespace packed

#endif  // PACKED_CUH_
