#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>

#include "cub_either.h"
#include "float_kinds.h"

namespace overflow {

constexpr int kMostThreads = 512;

// A basin takes what flows in up to its brim; the rest stays in the inflow, for the next time.
// The brim is the row's mean level times the basin's own height.
template <typename scalar_t>
__global__ void carry_overflow_kernel(scalar_t* __restrict__ basin,         // [..., basins]
                                      scalar_t* __restrict__ inflow,        // [..., basins]
                                      const scalar_t* __restrict__ height,  // [basins]
                                      const float slack, const int fields, const int basins) {
  using Total = blockwise::BlockReduce<float, kMostThreads>;
  __shared__ typename Total::TempStorage scratch;
  __shared__ float mean_level;

  const int64_t field = blockIdx.x;
  basin += field * basins;
  inflow += field * basins;

  float level = 0.0f;
  for (int b = threadIdx.x; b < basins; b += blockDim.x) {
    level += fabsf(static_cast<float>(basin[b]) + static_cast<float>(inflow[b]));
  }
  level = Total(scratch).Reduce(level, TotalOp{}, blockDim.x);
  if (threadIdx.x == 0) mean_level = level / basins + slack;
  __syncthreads();

  for (int b = threadIdx.x; b < basins; b += blockDim.x) {
    const float filled = static_cast<float>(basin[b]) + static_cast<float>(inflow[b]);
    const float brim = mean_level * fabsf(static_cast<float>(height[b]));
    const float kept = fmaxf(-brim, fminf(brim, filled));
    basin[b] = static_cast<scalar_t>(kept);
    inflow[b] = static_cast<scalar_t>(filled - kept);
  }
}

}  // namespace overflow

#define CARRY_OVERFLOW(THREADS)                                                   \
  FOR_FLOAT_KINDS(basin, "carry_overflow", [&] {                                  \
    overflow::carry_overflow_kernel<scalar_t><<<fields, THREADS, 0, stream>>>(    \
        basin.data_ptr<scalar_t>(), inflow.data_ptr<scalar_t>(),                  \
        height.data_ptr<scalar_t>(), slack, fields, basins);                      \
  })

void carry_overflow(torch::Tensor& basin, torch::Tensor& inflow, const torch::Tensor& height,
                    double slack) {
  TORCH_CHECK(basin.is_contiguous() && inflow.is_contiguous(), "carry_overflow wants dense rows");
  const int basins = height.numel();
  const int fields = basin.numel() / basins;
  const c10::cuda::CUDAGuard here(basin.device());
  auto stream = at::cuda::getCurrentCUDAStream();

  // With many fields the device is full anyhow, and small blocks wait less for each other.
  int threads = fields > 400 ? 128 : overflow::kMostThreads;
  if (basins < threads) threads = basins;
  CARRY_OVERFLOW(threads);
}
