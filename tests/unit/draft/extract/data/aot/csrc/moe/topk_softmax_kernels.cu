#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/all.h>

#ifndef USE_ROCM
#include <cub/cub.cuh>
#include <cub/util_type.cuh>
#include <cuda/functional>
#else
#include <hipcub/hipcub.hpp>
#endif

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

#ifdef USE_ROCM
#define WARP_SIZE 64
#else
#define WARP_SIZE 32
#endif

// A row per block, for numbers of experts that no instantiation fits.
template <int TPB>
__launch_bounds__(TPB) __global__
    void row_softmax(const float* input, const bool* finished, float* output, const int num_cols) {
  using BlockReduce = cub::BlockReduce<float, TPB>;
  __shared__ typename BlockReduce::TempStorage storage;
  __shared__ float normalizing_factor;
  __shared__ float float_max;
  const int offset = blockIdx.x * num_cols;
  if ((finished != nullptr) && finished[blockIdx.x]) return;
  float data = -FLT_MAX;
  for (int i = threadIdx.x; i < num_cols; i += TPB) data = MAX(data, input[offset + i]);
  const float largest = BlockReduce(storage).Reduce(data, cuda::maximum<>());
  if (threadIdx.x == 0) float_max = largest;
  __syncthreads();
  data = 0;
  for (int i = threadIdx.x; i < num_cols; i += TPB) data += exp(input[offset + i] - float_max);
  const float sum = BlockReduce(storage).Sum(data);
  if (threadIdx.x == 0) normalizing_factor = 1.f / sum;
  __syncthreads();
  for (int i = threadIdx.x; i < num_cols; i += TPB) {
    output[offset + i] = exp(input[offset + i] - float_max) * normalizing_factor;
  }
}

template <typename T, int VPT, int EXPERTS, int WARPS_PER_CTA, int BYTES_PER_LDG>
__launch_bounds__(WARPS_PER_CTA* WARP_SIZE) __global__ void gating_softmax(
    const T* input, float* output, const int num_rows, int* indices, const int k) {
  static_assert(VPT == (VPT & -VPT), "VPT must be power of 2");
  static constexpr int ELTS_PER_LDG = BYTES_PER_LDG / sizeof(T);
  static constexpr int THREADS_PER_ROW = EXPERTS / VPT;
  static constexpr int ROWS_PER_WARP = (WARP_SIZE * VPT) / EXPERTS;
  const int row = (blockIdx.x * WARPS_PER_CTA + threadIdx.y) * ROWS_PER_WARP + threadIdx.x / THREADS_PER_ROW;
  if (row >= num_rows) return;
  const T* from = input + row * EXPERTS + (threadIdx.x % THREADS_PER_ROW) * ELTS_PER_LDG;
  float chunk[VPT];
#pragma unroll
  for (int i = 0; i < VPT; ++i) {
    chunk[i] = static_cast<float>(from[(i / ELTS_PER_LDG) * THREADS_PER_ROW * ELTS_PER_LDG + i % ELTS_PER_LDG]);
  }
  float best = chunk[0];
#pragma unroll
  for (int i = 1; i < VPT; ++i) best = MAX(best, chunk[i]);
#pragma unroll
  for (int mask = THREADS_PER_ROW / 2; mask > 0; mask /= 2) {
    best = MAX(best, __shfl_xor_sync(0xffffffff, best, mask, THREADS_PER_ROW));
  }
  if (threadIdx.x % THREADS_PER_ROW == 0) {
    output[row * k] = best;
    indices[row * k] = row;
  }
}

namespace detail {
// The layout of one row in registers.
template <typename T, int EXPERTS, int BYTES_PER_LDG>
struct Layout {
  static constexpr int ELTS_PER_LDG = BYTES_PER_LDG / sizeof(T);
  static constexpr int VECS_PER_THREAD = MAX(1, EXPERTS / (ELTS_PER_LDG * WARP_SIZE));
  static constexpr int VPT = VECS_PER_THREAD * ELTS_PER_LDG;
  static constexpr int ROWS_PER_WARP = WARP_SIZE / (EXPERTS / VPT);
};
}  // namespace detail

template <typename T, int EXPERTS, int WARPS_PER_TB>
void gating_softmax_launcher(
    const T* input, float* output, int* indices, const int num_rows, const int k, cudaStream_t stream) {
  static constexpr int MAX_BYTES_PER_LDG = 16;
  static constexpr int BYTES_PER_LDG = MIN(MAX_BYTES_PER_LDG, sizeof(T) * EXPERTS);
  using Constants = detail::Layout<T, EXPERTS, BYTES_PER_LDG>;
  static constexpr int VPT = Constants::VPT;
  const int num_warps = (num_rows + Constants::ROWS_PER_WARP - 1) / Constants::ROWS_PER_WARP;
  const int num_blocks = (num_warps + WARPS_PER_TB - 1) / WARPS_PER_TB;
  dim3 block_dim(WARP_SIZE, WARPS_PER_TB);
  gating_softmax<T, 8, EXPERTS, WARPS_PER_TB, 16><<<num_blocks, block_dim, 0, stream>>>(
      input, output, num_rows, indices, k);
}

#define LAUNCH_SOFTMAX(TYPE, NUM_EXPERTS, WARPS_PER_TB)                 \
  gating_softmax_launcher<TYPE, NUM_EXPERTS, WARPS_PER_TB>(             \
      gating, weights, indices, num_tokens, topk, stream);

template <typename T>
void gating_softmax_wrapper(
    const T* gating, float* weights, int* indices, float* workspace, const int num_tokens,
    const int num_experts, const int topk, cudaStream_t stream) {
  static constexpr int WARPS_PER_TB = 4;
  switch (num_experts) {
    case 64:
      LAUNCH_SOFTMAX(T, 64, WARPS_PER_TB);
      break;
    case 128:
      LAUNCH_SOFTMAX(T, 128, WARPS_PER_TB);
      break;
    default: {
      static constexpr int TPB = 256;
      row_softmax<TPB><<<num_tokens, TPB, 0, stream>>>(nullptr, nullptr, workspace, num_experts);
    }
  }
}

void topk_softmax(torch::Tensor& topk_weights, torch::Tensor& topk_indices, torch::Tensor& gating_output) {
  const int num_experts = gating_output.size(-1);
  const int num_tokens = gating_output.numel() / num_experts;
  const int topk = topk_weights.size(-1);
  const at::cuda::OptionalCUDAGuard device_guard(device_of(gating_output));
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  torch::Tensor workspace = torch::empty({num_tokens}, gating_output.options().dtype(torch::kFloat32));
  if (gating_output.scalar_type() == at::ScalarType::Float) {
    gating_softmax_wrapper<float>(
        gating_output.data_ptr<float>(), topk_weights.data_ptr<float>(), topk_indices.data_ptr<int>(),
        workspace.data_ptr<float>(), num_tokens, num_experts, topk, stream);
  } else if (gating_output.scalar_type() == at::ScalarType::BFloat16) {
    gating_softmax_wrapper<__nv_bfloat16>(
        reinterpret_cast<const __nv_bfloat16*>(gating_output.data_ptr<at::BFloat16>()),
        topk_weights.data_ptr<float>(), topk_indices.data_ptr<int>(), workspace.data_ptr<float>(),
        num_tokens, num_experts, topk, stream);
  } else {
    TORCH_CHECK(false, "no kernel for ", gating_output.scalar_type());
  }
}
