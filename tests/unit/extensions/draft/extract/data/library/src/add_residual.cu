#include "library/add_residual.cuh"

#include <iostream>

namespace library {

template <typename T>
void launch_add_residual(T* residual, const T* x, int rows, int cols, cudaStream_t stream) {
  constexpr int kThreads = 256;
  constexpr int kItems = Traits<T>::kPerAccess / 2;
  kernels::add_residual_kernel<T, 4><<<rows, kThreads, 0, stream>>>(residual, x, rows, cols);
}

template void launch_add_residual<float>(float*, const float*, int, int, cudaStream_t);

void add_residual(bf16* residual, const bf16* x, const Shape& shape, cudaStream_t stream) {
  require(shape.dims.size() == 2, "two dimensions");
  Traits<bf16>::check(shape);
  const int rows = shape.dims[0], cols = shape.dims[1];
  launch_add_residual<bf16>(residual, x, rows, cols, stream);
  std::cout << "added\n";
}

}  // namespace library
