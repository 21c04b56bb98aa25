#pragma once

#include "types.h"

namespace library::kernels {

namespace detail {

template <typename T>
__device__ __forceinline__ typename Traits<T>::Wide widen(T x) {
  return static_cast<typename Traits<T>::Wide>(x);
}

}  // namespace detail

// residual += x, row by row.
template <typename T, int kItems, Rounding kRounding = Rounding::kNearest>
__global__ void __launch_bounds__(256)
add_residual_kernel(T* __restrict__ residual, const T* __restrict__ x, int rows, int cols) {
  const int row = blockIdx.x;
  if (row >= rows) return;
#pragma unroll kItems
  for (int c = threadIdx.x; c < cols; c += blockDim.x) {
    const float sum = detail::widen(residual[row * cols + c]) + detail::widen(x[row * cols + c]);
    residual[row * cols + c] = Traits<T>::narrow(sum);
  }
}

}  // namespace library::kernels
