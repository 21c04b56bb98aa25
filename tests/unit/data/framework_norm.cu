#include <ATen/cuda/CUDAContext.h>
#include <cuda_bf16.h>
#include <torch/extension.h>

#include <algorithm>

#define DEVICE_INLINE __device__ __forceinline__
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")

namespace ops {
namespace norm {

using bf16 = __nv_bfloat16;

constexpr int kWarpSize = 32;
constexpr int kVecSize = 8;
constexpr int kMaxThreads = 1024;
constexpr bool kUseCacheHint = true;
static constexpr float kEps = 1e-6f;

constexpr int warps_of(int threads) { return (threads + kWarpSize - 1) / kWarpSize; }

DEVICE_INLINE float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

template <typename scalar_t>
struct alignas(16) Pack {
  scalar_t items[kVecSize];
};

template <typename scalar_t, bool kAddResidual>
__global__ __launch_bounds__(kMaxThreads, 1) void scale_rows_kernel(
    scalar_t* __restrict__ out,
    const scalar_t* __restrict__ in,
    scalar_t* __restrict__ residual,
    const bf16* __restrict__ weight,
    const int64_t hidden,
    float eps) {
  __shared__ float partial[warps_of(kMaxThreads)];
  using P = Pack<scalar_t>;
  const P* row = reinterpret_cast<const P*>(in + blockIdx.x * hidden);
  float sum = 0.f;
  for (int i = threadIdx.x; i < hidden / kVecSize; i += blockDim.x) {
    P pack = row[i];
#pragma unroll 4
    for (int j = 0; j < kVecSize; ++j) {
      float x = static_cast<float>(pack.items[j]);
      if (kAddResidual) x += static_cast<float>(residual[blockIdx.x * hidden + i * kVecSize + j]);
      sum += x * x;
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = sum;
  __syncthreads();
  float total = 0.f;
  for (int w = 0; w < warps_of(blockDim.x); ++w) total += partial[w];
  const float scale = rsqrtf(total / hidden + (eps > 0.f ? eps : kEps));
  for (int i = threadIdx.x; i < hidden / kVecSize; i += blockDim.x) {
    P pack = row[i];
    for (int j = 0; j < kVecSize; ++j) {
      const float x = static_cast<float>(pack.items[j]) * scale;
      const scalar_t y = static_cast<scalar_t>(x * static_cast<float>(weight[i * kVecSize + j]));
      if (kUseCacheHint) {
        out[blockIdx.x * hidden + i * kVecSize + j] = y;
      }
    }
  }
}

}  // namespace norm

void scale_rows(torch::Tensor& out, const torch::Tensor& in, torch::Tensor& residual,
                const torch::Tensor& weight, double eps) {
  CHECK_CONTIGUOUS(in);
  const int64_t hidden = in.size(-1);
  const int64_t tokens = in.numel() / hidden;
  dim3 grid(tokens);
  dim3 block(std::min<int64_t>(hidden / norm::kVecSize, 1024));
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_REDUCED_FLOATING_TYPES(in.scalar_type(), "scale_rows", [&] {
    norm::scale_rows_kernel<scalar_t, false><<<grid, block, 0, stream>>>(
        out.data_ptr<scalar_t>(), in.data_ptr<scalar_t>(), residual.data_ptr<scalar_t>(),
        weight.data_ptr<norm::bf16>(), hidden, static_cast<float>(eps));
  });
}

}  // namespace ops

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("scale_rows", &ops::scale_rows);
}
