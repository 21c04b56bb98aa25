#include <kit/device.cuh>
#include <kit/host.h>

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>

namespace {

struct RMSNormParams {
  const void* input;
  const void* __restrict__ weight;
  void* output;
  int64_t input_stride;
  int64_t output_stride;
  uint32_t num_tokens;
  float eps;
};

constexpr uint32_t kBlockSize = 256;

KIT_DEVICE float block_sum(float value, float* shared) {
  for (uint32_t lanes = kit::kWarpThreads / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, lanes);
  }
  const uint32_t warp = threadIdx.x / kit::kWarpThreads, lane = threadIdx.x % kit::kWarpThreads;
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = lane < kBlockSize / kit::kWarpThreads ? shared[lane] : 0.0f;
  for (uint32_t lanes = kit::kWarpThreads / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, lanes);
  }
  __syncthreads();
  return value;
}

template <int64_t kDim, bool kUsePDL, kit::sixteen_bits T>
__global__ void __launch_bounds__(kBlockSize) rmsnorm_block(const __grid_constant__ RMSNormParams params) {
  constexpr int64_t kVec = 8;
  __shared__ float shared[kit::kWarpThreads];
  const auto& [input, weight, output, input_stride, output_stride, num_tokens, eps] = params;
  kit::wait_for_previous<kUsePDL>();
  for (uint32_t row = blockIdx.x; row < num_tokens; row += gridDim.x) {
    const T* in = kit::pointer::offset<T>(input, row * input_stride);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x * kVec; i < kDim; i += kBlockSize * kVec) {
      kit::Vector<T, kVec> x;
      x.load(in + i);
      for (int64_t j = 0; j < kVec; ++j) sum += static_cast<float>(x.data[j]) * static_cast<float>(x.data[j]);
    }
    const float scale = rsqrtf(block_sum(sum, shared) / kDim + eps);
    T* out = kit::pointer::offset<T>(output, row * output_stride);
    for (int64_t i = threadIdx.x * kVec; i < kDim; i += kBlockSize * kVec) {
      kit::Vector<T, kVec> x, w;
      x.load(in + i);
      w.load(static_cast<const T*>(weight) + i);
      for (int64_t j = 0; j < kVec; ++j) {
        x.data[j] = static_cast<T>(static_cast<float>(x.data[j]) * scale * static_cast<float>(w.data[j]));
      }
      x.store(out + i);
    }
  }
  kit::let_next_start<kUsePDL>();
}

template <int64_t kDim, bool kUsePDL, typename DType>
struct RMSNormKernel {
  static_assert(kDim % 8 == 0);
  static constexpr auto kernel = rmsnorm_block<kDim, kUsePDL, DType>;

  static void run(const tvm::ffi::TensorView input, const tvm::ffi::TensorView weight,
                  const tvm::ffi::TensorView output, float eps) {
    const auto num_tokens = static_cast<uint32_t>(input.size(0));
    const auto params = RMSNormParams{
        .input = input.data_ptr(),
        .weight = weight.data_ptr(),
        .output = output.data_ptr(),
        .input_stride = input.stride(0),
        .output_stride = output.stride(0),
        .num_tokens = num_tokens,
        .eps = eps,
    };
    host::LaunchKernel(num_tokens, kBlockSize, input.device()).enable_pdl(kUsePDL)(kernel, params);
  }
};

}  // namespace
