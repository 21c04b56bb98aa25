#include <torch/extension.h>
namespace gate {
namespace detail {
template <typename U, int LOAD> struct Widths { static constexpr int kWidth = LOAD / sizeof(U); };
}  // namespace detail
template <typename T> struct Pair { using Type = float2; };
template <typename T> __device__ T keep(const T& x) { return x; }
template <typename T> __device__ T turn(const T& x) { return T{x.y, x.x}; }

template <typename T, typename P, T (*ONE)(const T&), P (*TWO)(const P&), int WIDTH>
__global__ void apply(T* x) {
  for (int i = 0; i < WIDTH; i++) x[threadIdx.x * WIDTH + i] = ONE(x[i]);
  reinterpret_cast<P*>(x)[threadIdx.x] = TWO(reinterpret_cast<P*>(x)[threadIdx.x]);
}

template <typename T>
void launch(T* x) {
  constexpr int BYTES = sizeof(T) * 4;
  using Own = detail::Widths<T, BYTES>;
  static constexpr int WIDTH = Own::kWidth;
  apply<T, typename Pair<T>::Type, keep<T>, turn<typename Pair<T>::Type>, WIDTH><<<1, 32>>>(x);
}
template void launch<float>(float* x);
}  // namespace gate
