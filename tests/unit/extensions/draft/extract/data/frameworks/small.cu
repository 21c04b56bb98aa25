#include <torch/extension.h>
#include <cuda/std/limits>
template <typename T> constexpr T most = T{};
template <>
inline constexpr float most<float> = 1.0f;
template <typename T>
__global__ void quantize(T* y, const float* x, const T* other) {
  constexpr T largest = std::numeric_limits<T>::max();
  float const end = other[0] + largest;
  float value = x[threadIdx.x] / end;
  if (cuda::std::isfinite(value))
    y[threadIdx.x] = value > 1.0f ? T(value) : static_cast<T>(other[1]);
}
void run(torch::Tensor y, torch::Tensor x, torch::Tensor o) {
  quantize<<<1, 32>>>(
      y.data_ptr<c10::Float8_e4m3fn>(), x.data_ptr<float>(), o.data_ptr<c10::Float8_e4m3fn>());
}
