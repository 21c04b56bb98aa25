#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/Dispatch.h>
#include <ATen/TensorUtils.h>
#include <ATen/ceil_div.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/macros/Macros.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/empty.h>
#endif

namespace at::native {

namespace {

static const int BLOCKDIMY = 8;

template <typename scalar_t, typename index_t>
__global__ void index_select_rows_kernel(
    const index_t* __restrict__ indices,
    const scalar_t* __restrict__ weight,
    scalar_t* __restrict__ output,
    int64_t num_indices,
    int64_t embedding_dim,
    index_t padding_idx) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= num_indices) {
    return;
  }
  const index_t source = indices[row];
  CUDA_KERNEL_ASSERT(source >= 0);
  for (int64_t i = threadIdx.x; i < embedding_dim; i += blockDim.x) {
    output[row * embedding_dim + i] =
        source == padding_idx ? static_cast<scalar_t>(0) : weight[source * embedding_dim + i];
  }
}

} // namespace

Tensor index_select_rows_cuda(const Tensor& weight, const Tensor& indices_, int64_t padding_idx) {
  auto indices = indices_.contiguous();
  const int64_t num_indices = indices.numel();
  const int64_t embedding_dim = weight.size(1);
  auto output = at::empty({num_indices, embedding_dim}, weight.options());
  if (num_indices == 0) {
    return output;
  }
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const dim3 block(C10_WARP_SIZE, BLOCKDIMY);
  const dim3 grid(ceil_div(num_indices, static_cast<int64_t>(BLOCKDIMY)));

  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::ScalarType::Half, at::ScalarType::BFloat16, weight.scalar_type(), "index_select_rows_cuda", [&] {
        AT_DISPATCH_INDEX_TYPES(indices.scalar_type(), "index_select_rows_cuda", [&] {
          index_select_rows_kernel<scalar_t, index_t><<<grid, block, 0, stream>>>(
              indices.const_data_ptr<index_t>(),
              weight.const_data_ptr<scalar_t>(),
              output.mutable_data_ptr<scalar_t>(),
              num_indices,
              embedding_dim,
              static_cast<index_t>(padding_idx));
          C10_CUDA_KERNEL_LAUNCH_CHECK();
        });
      });
  return output;
}

} // namespace at::native
