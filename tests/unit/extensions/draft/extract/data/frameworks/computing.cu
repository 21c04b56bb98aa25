#include <torch/extension.h>
#include <cuda_fp16.h>

template <typename T> struct Pair;
template <> struct Pair<__half> { using Type = __half2; };
template <> struct Pair<torch::headeronly::Half> { using Type = __half2; };

template <typename scalar_t>
__global__ void leaky_kernel(scalar_t* y, const scalar_t* x, float slope, int n) {
  static_assert(sizeof(typename Pair<scalar_t>::Type) == 4, "two of them");
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  scalar_t value = x[i];
  value += 1;
  if (value < 0 || !(value > 0.5f)) value = value * slope - 2 * value;
  y[i] = -value;
}

void leaky(torch::Tensor y, torch::Tensor x, double slope) {
  AT_DISPATCH_SWITCH(x.scalar_type(), "leaky", AT_DISPATCH_CASE(at::ScalarType::Half, [&] {
    leaky_kernel<scalar_t><<<(x.numel() + 255) / 256, 256>>>(
        y.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), slope, x.numel());
  }));
}
