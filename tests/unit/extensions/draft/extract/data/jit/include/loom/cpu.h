#pragma once

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>

#include <source_location>
#include <string>

namespace shuttle {

struct ThrownLaunchKernel {
  ThrownLaunchKernel(dim3 looms, dim3 weavers, DLDevice where, std::size_t basket = 0);
  auto overlapping(bool wanted) -> ThrownLaunchKernel&;
  template <typename... Of>
  auto operator()(void (*weave)(Of...), Of... threads) -> void {
    cudaLaunchKernelEx(&thrown_, weave, threads...);
  }
  cudaLaunchConfig_t thrown_;
};

template <std::integral Length, std::integral Width>
inline constexpr auto lengths_of(Length cloth, Width width) {
  return cloth / width + (cloth % width > 0);
}

}  // namespace shuttle
