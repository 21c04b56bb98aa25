#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/TensorBase.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/detail/KernelUtils.h>
#include <c10/core/Scalar.h>
#include <c10/cuda/CUDAMathCompat.h>
#include <c10/util/Exception.h>

namespace at::native {

namespace {

constexpr int kBiasGeluThreads = 256;

template <typename scalar_t>
C10_LAUNCH_BOUNDS_1(kBiasGeluThreads)
__global__ void bias_gelu_kernel(
    const scalar_t* __restrict__ self,
    const scalar_t* __restrict__ bias,
    scalar_t* __restrict__ out,
    const int64_t numel,
    const int64_t width) {
  using opmath_t = at::opmath_type<scalar_t>;
  constexpr opmath_t kAlpha = M_SQRT1_2;
  CUDA_KERNEL_LOOP_TYPE(i, numel, int64_t) {
    const opmath_t x = static_cast<opmath_t>(self[i]) + static_cast<opmath_t>(bias[i % width]);
    out[i] = static_cast<scalar_t>(x * opmath_t(0.5) * (opmath_t(1) + c10::cuda::compat::erf(x * kAlpha)));
  }
}

} // namespace

void launch_bias_gelu(const TensorBase& out, const TensorBase& self, const TensorBase& bias) {
  const int64_t numel = self.numel();
  const int64_t width = self.size(-1);
  if (numel == 0) {
    return;
  }
  const int64_t blocks = std::min<int64_t>((numel + kBiasGeluThreads - 1) / kBiasGeluThreads, 65535);
  const auto stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_SWITCH(
      self.scalar_type(),
      "bias_gelu_cuda",
      AT_DISPATCH_CASE(
          at::ScalarType::Float,
          [&] {
            bias_gelu_kernel<scalar_t><<<blocks, kBiasGeluThreads, 0, stream>>>(
                self.const_data_ptr<scalar_t>(), bias.const_data_ptr<scalar_t>(),
                out.mutable_data_ptr<scalar_t>(), numel, width);
            C10_CUDA_KERNEL_LAUNCH_CHECK();
          })
      AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES([&] {
        bias_gelu_kernel<scalar_t><<<blocks, kBiasGeluThreads, 0, stream>>>(
            self.const_data_ptr<scalar_t>(), bias.const_data_ptr<scalar_t>(),
            out.mutable_data_ptr<scalar_t>(), numel, width);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
      }));
}

} // namespace at::native
