#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#define KIT_DEVICE __forceinline__ __device__

using bf16_t = __nv_bfloat16;
using fp16_t = __half;

namespace kit {

inline constexpr uint32_t kWarpThreads = 32u;

template <bool kUsePDL>
KIT_DEVICE void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kUsePDL) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <bool kUsePDL>
KIT_DEVICE void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kUsePDL) asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}

namespace pointer {

template <typename T>
KIT_DEVICE auto offset(const void* base, std::size_t elements) -> const T* {
  return static_cast<const T*>(base) + elements;
}

template <typename T>
KIT_DEVICE auto offset(void* base, std::size_t elements) -> T* {
  return static_cast<T*>(base) + elements;
}

}  // namespace pointer

template <typename T>
concept sixteen_bits = std::same_as<T, fp16_t> || std::same_as<T, bf16_t>;

template <sixteen_bits T, std::size_t N>
struct alignas(sizeof(T) * N) Vector {
  T data[N];
  KIT_DEVICE void load(const T* from) { *this = *reinterpret_cast<const Vector*>(from); }
  KIT_DEVICE void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
};

}  // namespace kit
