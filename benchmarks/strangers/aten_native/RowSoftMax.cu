#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/NumericLimits.cuh>
#include <ATen/native/cuda/block_reduce.cuh>
#include <c10/macros/Macros.h>
#include <cuda/std/limits>

#include <cstdint>

namespace at::native {

namespace {

template <typename T, typename AccumT, typename OutT>
struct SoftMaxForwardEpilogue {
  __device__ __forceinline__ SoftMaxForwardEpilogue(AccumT max_input, AccumT sum)
      : max_input(max_input), sum(sum) {}

  __device__ __forceinline__ OutT operator()(T input) const {
    return static_cast<OutT>(std::exp(input - max_input) / sum);
  }

  const AccumT max_input;
  const AccumT sum;
};

template <typename T, typename AccumT, typename OutT>
struct LogSoftMaxForwardEpilogue {
  __device__ __forceinline__ LogSoftMaxForwardEpilogue(AccumT max_input, AccumT sum)
      : max_input(max_input), logsum(std::log(sum)) {}

  __device__ __forceinline__ OutT operator()(T input) const {
    return static_cast<OutT>(input - max_input - logsum);
  }

  const AccumT max_input;
  const AccumT logsum;
};

struct MaxOf {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

struct SumOf {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

template <typename AccumT, typename Op>
__device__ __forceinline__ AccumT reduce_block(AccumT* smem, AccumT val, Op op, AccumT identity) {
  __syncthreads();
  smem[threadIdx.x] = val;
  __syncthreads();
  AccumT result = identity;
  if (threadIdx.x < C10_WARP_SIZE) {
    for (int i = threadIdx.x; i < blockDim.x; i += C10_WARP_SIZE) {
      result = op(result, smem[i]);
    }
    for (int offset = C10_WARP_SIZE / 2; offset > 0; offset /= 2) {
      result = op(result, WARP_SHFL_XOR(result, offset));
    }
    if (threadIdx.x == 0) {
      smem[0] = result;
    }
  }
  __syncthreads();
  return smem[0];
}

template <typename scalar_t, typename accscalar_t, typename outscalar_t,
          template <typename, typename, typename> class Epilogue>
__global__ void row_softmax_forward(outscalar_t* output, const scalar_t* input, int64_t classes) {
  extern __shared__ unsigned char smem[];
  auto sdata = reinterpret_cast<accscalar_t*>(smem);
  input += static_cast<int64_t>(blockIdx.x) * classes;
  output += static_cast<int64_t>(blockIdx.x) * classes;

  accscalar_t threadMax = cuda::std::numeric_limits<accscalar_t>::lowest();
  for (int64_t i = threadIdx.x; i < classes; i += blockDim.x) {
    threadMax = MaxOf()(threadMax, static_cast<accscalar_t>(input[i]));
  }
  const accscalar_t max_k =
      reduce_block<accscalar_t>(sdata, threadMax, MaxOf(), cuda::std::numeric_limits<accscalar_t>::lowest());
  accscalar_t threadSum = 0;
  for (int64_t i = threadIdx.x; i < classes; i += blockDim.x) {
    threadSum += std::exp(static_cast<accscalar_t>(input[i]) - max_k);
  }
  const accscalar_t sumAll = reduce_block<accscalar_t>(sdata, threadSum, SumOf(), accscalar_t(0));
  Epilogue<scalar_t, accscalar_t, outscalar_t> epilogue(max_k, sumAll);
  for (int64_t i = threadIdx.x; i < classes; i += blockDim.x) {
    output[i] = epilogue(input[i]);
  }
}

inline dim3 SoftMaxForward_getBlockSize(uint64_t dim_size) {
  uint64_t block_size = 1;
  const uint64_t max_block_size = std::min<uint64_t>(dim_size, 1024);
  while (block_size < max_block_size / 2) {
    block_size *= 2;
  }
  return dim3(std::max<uint64_t>(block_size, C10_WARP_SIZE));
}

template <template <typename, typename, typename> class Epilogue>
void host_row_softmax(const Tensor& output, const Tensor& input) {
  const int64_t dim_size = input.size(-1);
  const int64_t outer_size = input.numel() / dim_size;
  const dim3 grid(outer_size);
  const dim3 block = SoftMaxForward_getBlockSize(dim_size);
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::ScalarType::Half, at::ScalarType::BFloat16, input.scalar_type(), "host_row_softmax", [&] {
        using accscalar_t = acc_type<scalar_t, true>;
        const size_t smem_size = block.x * sizeof(accscalar_t);
        row_softmax_forward<scalar_t, accscalar_t, scalar_t, Epilogue>
            <<<grid, block, smem_size, stream>>>(
                output.mutable_data_ptr<scalar_t>(), input.const_data_ptr<scalar_t>(), dim_size);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
      });
}

} // namespace

TORCH_IMPL_FUNC(row_softmax_cuda_out)(const Tensor& input, const Tensor& output) {
  host_row_softmax<SoftMaxForwardEpilogue>(output, input);
}

TORCH_IMPL_FUNC(row_log_softmax_cuda_out)(const Tensor& input, const Tensor& output) {
  host_row_softmax<LogSoftMaxForwardEpilogue>(output, input);
}

} // namespace at::native
