#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/TensorBase.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/detail/KernelUtils.h>
#include <c10/cuda/CUDAMathCompat.h>
#include <c10/util/Exception.h>

#include <algorithm>

// Shifts each column, then turns what lies outside a circle of radius sqrt(2) into it: z becomes 2 / z.
namespace at::native {

namespace {

constexpr int kTurners = 192;
constexpr int64_t kMostTurnBlocks = 4096;

template <typename elem_t>
C10_LAUNCH_BOUNDS_1(kTurners)
__global__ void turn_inward_kernel(
    elem_t* __restrict__ turned,
    const elem_t* __restrict__ points,
    const elem_t* __restrict__ shift,
    const int64_t columns,
    const int64_t count) {
  using wide_t = at::opmath_type<elem_t>;
  constexpr wide_t kRadius = M_SQRT2;
  CUDA_KERNEL_LOOP_TYPE(spot, count, int64_t) {
    const wide_t z = wide_t(points[spot]) + wide_t(shift[spot % columns]);
    const wide_t reach = c10::cuda::compat::abs(z);
    turned[spot] = elem_t(reach > kRadius ? kRadius * kRadius / z : z);
  }
}

template <typename elem_t>
void turn_inward(const TensorBase& turned, const TensorBase& points, const TensorBase& shift) {
  const int64_t count = points.numel();
  const auto wanted = (count + kTurners - 1) / kTurners;
  turn_inward_kernel<elem_t>
      <<<std::min(kMostTurnBlocks, wanted), kTurners, 0, at::cuda::getCurrentCUDAStream()>>>(
          turned.mutable_data_ptr<elem_t>(),
          points.const_data_ptr<elem_t>(),
          shift.const_data_ptr<elem_t>(),
          points.size(-1),
          count);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

} // namespace

void inward_turn_kernel_cuda(const TensorBase& turned, const TensorBase& points, const TensorBase& shift) {
  if (points.numel() == 0) return;
  AT_DISPATCH_SWITCH(
      points.scalar_type(),
      "inward_turn",
      AT_DISPATCH_CASE(at::ScalarType::Double, [&] { turn_inward<scalar_t>(turned, points, shift); })
      AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES([&] { turn_inward<scalar_t>(turned, points, shift); }));
}

} // namespace at::native
