#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#define LOOM_GPU __forceinline__ __device__

using brain_t = __nv_bfloat16;
using short_t = __half;

namespace loom {

inline constexpr uint32_t kWarpThreads = 32u;

// After this, what earlier kernels wrote is seen.
template <bool kOverlap>
LOOM_GPU void after_the_last() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kOverlap) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// From here on, later kernels may be set up.
template <bool kOverlap>
LOOM_GPU void make_way() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kOverlap) asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}

namespace walk {

template <typename Thread>
LOOM_GPU auto offset(const void* cloth, std::size_t steps) -> const Thread* {
  return static_cast<const Thread*>(cloth) + steps;
}

template <typename Thread>
LOOM_GPU auto offset(void* cloth, std::size_t steps) -> Thread* {
  return static_cast<Thread*>(cloth) + steps;
}

}  // namespace walk

template <typename Thread>
concept fine = std::same_as<Thread, brain_t> || std::same_as<Thread, short_t>;

template <fine Thread, std::size_t kMany>
struct alignas(kMany * sizeof(Thread)) Strand {
  Thread fibres[kMany];
  LOOM_GPU auto at(std::size_t which) const -> float { return static_cast<float>(fibres[which]); }
  LOOM_GPU void put(std::size_t which, float value) { fibres[which] = static_cast<Thread>(value); }
  LOOM_GPU void draw(const Thread* cloth) { *this = reinterpret_cast<const Strand*>(cloth)[0]; }
  LOOM_GPU void drop(Thread* cloth) const { reinterpret_cast<Strand*>(cloth)[0] = *this; }
};

}  // namespace loom
