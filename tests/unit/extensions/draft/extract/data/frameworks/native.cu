#include <ATen/ATen.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/native/cuda/block_reduce.cuh>
#include <c10/macros/Macros.h>

namespace at::native {
namespace {

template <typename scalar_t>
C10_LAUNCH_BOUNDS_1(num_threads())
__global__ void row_max_kernel(scalar_t* out, const scalar_t* in, int64_t columns) {
  using opmath_t = at::opmath_type<scalar_t>;
  using Vec = memory::aligned_vector<scalar_t, 4>;
  __shared__ opmath_t shared[C10_WARP_SIZE];
  CUDA_KERNEL_ASSERT(columns % 4 == 0 && "columns, in fours");
  opmath_t most = at::numeric_limits<opmath_t>::lower_bound();
  const Vec* row = reinterpret_cast<const Vec*>(in + blockIdx.x * columns);
  CUDA_KERNEL_LOOP_TYPE(i, columns / 4, int64_t) {
    Vec four = row[i];
    for (scalar_t value : four.val) most = max(most, c10::convert<opmath_t>(value));
  }
  most = cuda_utils::BlockReduceMax(most, shared);
  if (threadIdx.x == 0) out[blockIdx.x] = scalar_cast<scalar_t>(most);
}

}  // namespace

void row_max(const Tensor& in, Tensor& out) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, in.scalar_type(), "row_max", [&] {
    row_max_kernel<scalar_t><<<in.size(0), num_threads(), 0, at::cuda::getCurrentCUDAStream()>>>(
        out.data_ptr<scalar_t>(), in.data_ptr<scalar_t>(), in.size(1));
  });
}

}  // namespace at::native
