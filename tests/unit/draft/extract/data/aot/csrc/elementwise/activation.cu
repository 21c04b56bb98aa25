/*
 * An operator library in the style of those that PyTorch loads ahead of time: written for tests.
 */
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/all.h>

#include "op_utils.h"
#include "packed.cuh"

namespace activation {

template <typename T>
__device__ __forceinline__ T silu(const T& x) {
  const float f = packed::converted<float>(x);
  return packed::converted<T>(f / (1.0f + __expf(-f)));
}

template <typename T>
__device__ __forceinline__ T gelu(const T& x) {
  constexpr float kScale = 0.70710678118654752f;
  const float f = packed::converted<float>(x);
  return packed::converted<T>(f * 0.5f * (1.0f + erff(f * kScale)));
}

// One block per token: out[t, i] = Act(x[t, i]) * x[t, d + i].
template <typename T, T (*Act)(const T&)>
__global__ void act_and_mul_kernel(T* __restrict__ out, const T* __restrict__ input, const int d) {
  constexpr int kVec = packed::kAccessBytes / sizeof(T);
  const int64_t token = blockIdx.x;
  const T* gate = input + token * 2 * d;
  const T* up = gate + d;
#pragma unroll 1
  for (int i = threadIdx.x; i < d / kVec; i += blockDim.x) {
    packed::Pack<T, kVec> a, b, c;
    a.load(gate + i * kVec);
    b.load(up + i * kVec);
#pragma unroll
    for (int j = 0; j < kVec; ++j) c[j] = Act(a[j]) * b[j];
    c.store(out + token * d + i * kVec);
  }
}

}  // namespace activation

void silu_and_mul(at::Tensor& out, at::Tensor& input) {
  REQUIRE_INPUT(input);
  const int d = input.size(-1) / 2;
  const int64_t tokens = input.numel() / input.size(-1);
  dim3 grid(tokens);

  const at::cuda::OptionalCUDAGuard guard(device_of(input));
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  DISPATCH_HALF_TYPES(input.scalar_type(), c_type, [&] {
    const uint32_t vec_size = 16 / sizeof(c_type);
    dim3 block(std::min(d / vec_size, 1024U));
    activation::act_and_mul_kernel<c_type, activation::silu>
        <<<grid, block, 0, stream>>>(
            static_cast<c_type*>(out.data_ptr()), static_cast<c_type*>(input.data_ptr()), d);
    return true;
  });
}

void gelu_and_mul(at::Tensor& out, at::Tensor& input) {
  const int d = input.size(-1) / 2;
  const int64_t tokens = input.numel() / input.size(-1);
  dim3 grid(tokens);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  DISPATCH_HALF_TYPES(input.scalar_type(), c_type, [&] {
    const uint32_t vec_size = 16 / sizeof(c_type);
    dim3 block(std::min(d / vec_size, 1024U));
    activation::act_and_mul_kernel<c_type, activation::gelu>
        <<<grid, block, 0, stream>>>(
            static_cast<c_type*>(out.data_ptr()), static_cast<c_type*>(input.data_ptr()), d);
    return true;
  });
}

TORCH_LIBRARY_FRAGMENT(test_ops, m) {
  m.def("silu_and_mul(Tensor! out, Tensor input) -> ()");
  m.impl("silu_and_mul", torch::kCUDA, &silu_and_mul);
}
