#include <c10/cuda/CUDAMathCompat.h>
#include <torch/extension.h>

template <typename scalar_t>
__global__ void lerp_kernel(const scalar_t* a, const scalar_t* b, scalar_t* out, float w, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n || a[i] == 0.5f) return;
  out[i] = a[i] * (1.0f - w) + 2 * b[i] / c10::cuda::compat::exp(w);
}

void lerp(torch::Tensor a, torch::Tensor b, torch::Tensor out, float w) {
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(a.type(), "lerp", ([&] {
    lerp_kernel<scalar_t><<<1, 64>>>(
        a.data<scalar_t>(), b.data<scalar_t>(), out.data<scalar_t>(), w, a.numel());
  }));
}
