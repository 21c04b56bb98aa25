#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/Dispatch.h>
#include <ATen/TensorUtils.h>
#include <ATen/ceil_div.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/macros/Macros.h>

#ifdef AT_PER_OPERATOR_HEADERS
#include <ATen/ops/empty.h>
#else
#include <ATen/Functions.h>
#endif

namespace at::native {

namespace {

// A warp a strip, and so many strips a block.
constexpr int kStripsPerBlock = 6;

// Each strip fades from one reel of the shelf to another along its length; a mute reel adds nothing.
template <typename sample_t, typename reel_t>
__global__ void crossfade_rows_kernel(
    sample_t* __restrict__ strips,
    const sample_t* __restrict__ shelf,
    const reel_t* __restrict__ leaving,
    const reel_t* __restrict__ arriving,
    reel_t mute,
    int64_t strip_count,
    int64_t length) {
  const int64_t strip = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (strip < strip_count) {
    const reel_t before = leaving[strip], after = arriving[strip];
    CUDA_KERNEL_ASSERT(before >= 0 && after >= 0);
    for (int64_t place = threadIdx.x; place < length; place += blockDim.x) {
      const float passed = (place + 0.5f) / length;
      float mixed = 0;
      if (before != mute) mixed += (1 - passed) * static_cast<float>(shelf[before * length + place]);
      if (after != mute) mixed += passed * static_cast<float>(shelf[after * length + place]);
      strips[strip * length + place] = static_cast<sample_t>(mixed);
    }
  }
}

} // namespace

Tensor crossfade_rows_cuda(const Tensor& shelf, const Tensor& leaving_, const Tensor& arriving_, int64_t mute) {
  TensorArg leaving_arg{leaving_, "leaving", 2}, arriving_arg{arriving_, "arriving", 3};
  checkSameSize("crossfade_rows", leaving_arg, arriving_arg);
  const Tensor leaving = leaving_.contiguous(), arriving = arriving_.contiguous();
  const auto strip_count = leaving.numel(), length = shelf.size(1);
  Tensor strips = at::empty({strip_count, length}, shelf.options());
  if (strips.numel() == 0) return strips;

  dim3 block(C10_WARP_SIZE, kStripsPerBlock);
  dim3 grid(ceil_div(strip_count, int64_t(kStripsPerBlock)));
  AT_DISPATCH_INDEX_TYPES(leaving.scalar_type(), "crossfade_rows reels", [&] {
    AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, shelf.scalar_type(), "crossfade_rows shelf", [&] {
      crossfade_rows_kernel<scalar_t, index_t><<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(
          strips.mutable_data_ptr<scalar_t>(),
          shelf.const_data_ptr<scalar_t>(),
          leaving.const_data_ptr<index_t>(),
          arriving.const_data_ptr<index_t>(),
          static_cast<index_t>(mute),
          strip_count,
          length);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
  return strips;
}

} // namespace at::native
