#pragma once

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>

#include <source_location>
#include <string>

namespace host {

struct LaunchKernel {
  LaunchKernel(dim3 grid, dim3 block, DLDevice device, std::size_t shared = 0);
  auto enable_pdl(bool enabled) -> LaunchKernel&;
  template <typename... Args>
  auto operator()(void (*kernel)(Args...), Args... args) -> void {
    cudaLaunchKernelEx(&config_, kernel, args...);
  }
  cudaLaunchConfig_t config_;
};

template <std::integral T, std::integral U>
inline constexpr auto div_ceil(T a, U b) {
  return (a + b - 1) / b;
}

}  // namespace host
