#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/macros/Macros.h>
#include <cuda/std/limits>

#include "RowTally.cuh"

#include <algorithm>
#include <cstdint>

namespace at::native {

namespace {

// What becomes of a value once it is known how far its row reaches, and how many reach half as far.
template <typename In, typename Wide, typename Out>
struct ShareTheHeight {
  const Wide half_way, crowd;

  __device__ ShareTheHeight(Wide farthest, Wide crowd) : half_way(farthest / 2), crowd(crowd) {}

  __device__ Out operator()(In value) const {
    const Wide wide = static_cast<Wide>(value);
    return static_cast<Out>(std::abs(wide) < half_way ? wide : wide / crowd);
  }
};

template <typename In, typename Wide, typename Out>
struct SinkBelowCrowd {
  const Wide half_way, lost;

  __device__ SinkBelowCrowd(Wide farthest, Wide crowd) : half_way(farthest / 2), lost(std::sqrt(crowd)) {}

  __device__ Out operator()(In value) const {
    const Wide wide = static_cast<Wide>(value);
    return static_cast<Out>(std::abs(wide) < half_way ? wide / lost : wide);
  }
};

template <typename In, typename Wide, typename Out, template <typename, typename, typename> class Fate>
__global__ void crowded_peaks_kernel(const In* terrain, Out* reshaped, int64_t span) {
  extern __shared__ char scratch[];
  Wide* board = reinterpret_cast<Wide*>(scratch);
  const In* ground = terrain + blockIdx.x * span;
  Out* shaped = reshaped + blockIdx.x * span;

  Wide seen = cuda::std::numeric_limits<Wide>::lowest();
  for (int64_t step = threadIdx.x; step < span; step += blockDim.x)
    seen = tally::Farther()(seen, std::abs(static_cast<Wide>(ground[step])));
  const Wide farthest =
      tally::across_block(seen, board, tally::Farther(), cuda::std::numeric_limits<Wide>::lowest());

  Wide counted = 0;
  for (int64_t step = threadIdx.x; step < span; step += blockDim.x)
    if (std::abs(static_cast<Wide>(ground[step])) >= farthest / 2) counted += 1;
  const Wide crowd = tally::across_block(counted, board, tally::Together(), Wide(0));

  const Fate<In, Wide, Out> fate(farthest, crowd);
  for (int64_t step = threadIdx.x; step < span; step += blockDim.x) shaped[step] = fate(ground[step]);
}

// As many warps as cover half of a row, though no more than 16.
inline dim3 team_for(int64_t span) {
  int64_t threads = C10_WARP_SIZE;
  for (const int64_t enough = std::min<int64_t>(span / 2, 512); threads < enough;) threads += C10_WARP_SIZE;
  return dim3(threads);
}

template <template <typename, typename, typename> class Fate>
void reshape_peaks(const Tensor& terrain, const Tensor& reshaped, const char* who) {
  const auto span = terrain.size(-1);
  const dim3 team = team_for(span);
  const int64_t ridges = terrain.numel() / span;
  AT_DISPATCH_FLOATING_TYPES_AND2(kBFloat16, kHalf, terrain.scalar_type(), who, [&] {
    using wide_t = acc_type<scalar_t, true>;
    const size_t board_bytes = sizeof(wide_t) * team.x / C10_WARP_SIZE;
    crowded_peaks_kernel<scalar_t, wide_t, scalar_t, Fate>
        <<<dim3(ridges), team, board_bytes, at::cuda::getCurrentCUDAStream()>>>(
            terrain.const_data_ptr<scalar_t>(), reshaped.mutable_data_ptr<scalar_t>(), span);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

} // namespace

TORCH_IMPL_FUNC(share_peaks_out_cuda)(const Tensor& terrain, const Tensor& reshaped) {
  reshape_peaks<ShareTheHeight>(terrain, reshaped, "share_peaks");
}

TORCH_IMPL_FUNC(sink_valleys_out_cuda)(const Tensor& terrain, const Tensor& reshaped) {
  reshape_peaks<SinkBelowCrowd>(terrain, reshaped, "sink_valleys");
}

} // namespace at::native
