// Each stratum of rock is levelled: its heights become distances from the middle of its
// lowest and highest point, so that both ends are at the ends of what 8 bits hold. The middle and the grade stay beside.
#include <ATen/cuda/CUDAContext.h>
#include <c10/util/Float8_e4m3fn.h>

#include <cmath>

#include "skein.cuh"
#include "workshop.h"

using PEBBLE = c10::Float8_e4m3fn;
#ifndef USE_ROCM
constexpr float FARTHEST = 448.0f;
#else
constexpr float FARTHEST = 240.0f;
#endif

static constexpr int kStrataPerBlock = 8;

// Where there are many strata, every warp levels its own.
template <typename Rock, typename GRAIN, int kStrata = 8, int kVecSize = 16>
__global__ void level_by_warps(
    const Rock* __restrict__ heights, GRAIN* __restrict__ levelled, float* __restrict__ middles,
    float* __restrict__ grades, const int64_t length, const int64_t strata) {
  const int digger = threadIdx.x % WARP_THREADS;
  const int stratum = threadIdx.x / WARP_THREADS + blockIdx.x * kStrata;
  if (stratum >= strata) return;

  using Shovel = skein::Skein<Rock, kVecSize>;
  const Rock* from = heights + stratum * length;
  GRAIN* onto = levelled + stratum * length;
  const int shovels = length / kVecSize;
  Reach reach{INFINITY, -INFINITY};
  for (int s = digger; s < shovels; s += WARP_THREADS) {
    const Shovel load = Shovel::pulled(from + s * kVecSize);
#pragma unroll
    for (int v = 0; v < kVecSize; ++v) reach.take(static_cast<float>(load[v]));
  }
  reach = reach_of_warp(reach);
  const float middle = 0.5f * reach.low + 0.5f * reach.high;
  const float grade = (0.5f * reach.high - 0.5f * reach.low) / FARTHEST;
  if (digger == 0) {
    middles[stratum] = middle;
    grades[stratum] = grade;
  }
  for (int s = digger; s < shovels; s += WARP_THREADS) {
    const Shovel load = Shovel::pulled(from + s * kVecSize);
    skein::Skein<GRAIN, kVecSize> ground;
#pragma unroll
    for (int v = 0; v < kVecSize; ++v) {
      const float climb = grade > 0.0f ? (static_cast<float>(load[v]) - middle) / grade : 0.0f;
#ifdef USE_ROCM
      ground[v] = c10::Float8_e4m3fnuz(climb, c10::Float8_e4m3fnuz::from_bits());
#else
      ground[v] = static_cast<GRAIN>(climb);
#endif
    }
    ground.laid(onto + s * kVecSize);
  }
}

// Where there are few, a block digs together.
template <typename Rock, typename GRAIN, int kVecSize = 16>
__global__ void level_by_blocks(
    const Rock* __restrict__ heights, GRAIN* __restrict__ levelled, float* __restrict__ middles,
    float* __restrict__ grades, const int64_t length, const int64_t strata) {
  const int64_t stratum = blockIdx.x;
  if (stratum >= strata) return;
  const int64_t start = stratum * length;
  Reach reach{INFINITY, -INFINITY};
  for (int64_t s = start + threadIdx.x; s < start + length; s += blockDim.x) {
    reach.take(static_cast<float>(heights[s]));
  }
  reach = reach_of_block(reach);
  const float grade = (0.5f * reach.high - 0.5f * reach.low) / FARTHEST;
  const float middle = 0.5f * reach.low + 0.5f * reach.high;
  for (int64_t s = start + threadIdx.x; s < start + length; s += blockDim.x) {
    levelled[s] = static_cast<GRAIN>(grade > 0.0f ? (static_cast<float>(heights[s]) - middle) / grade : 0.0f);
  }
  if (threadIdx.x == 0) {
    middles[stratum] = middle;
    grades[stratum] = grade;
  }
}

void level_strata_fp8(torch::Tensor heights, torch::Tensor levelled, torch::Tensor middles, torch::Tensor grades) {
  WOVEN(heights);
  const auto extent = heights.sizes();
  const int64_t strata = extent[0];
  const int64_t length = extent[1];
  TORCH_CHECK(length % 16 == 0, "a stratum is dug in shovels of 16, and this one has ", length);
  cudaStream_t shaft = at::cuda::getCurrentCUDAStream();
  const int pits = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const bool deep = strata / kStrataPerBlock >= pits * 3;
  WEAVE_SHORT_YARNS(heights.scalar_type(), rock_t, [&] {
    if (deep) {
      constexpr int THREADS = kStrataPerBlock * WARP_THREADS;
      dim3 grid((strata + kStrataPerBlock - 1) / kStrataPerBlock);
      dim3 block(THREADS);
      level_by_warps<rock_t, PEBBLE, kStrataPerBlock, 16><<<grid, block, 0, shaft>>>(
          static_cast<const rock_t*>(heights.data_ptr()), static_cast<PEBBLE*>(levelled.data_ptr()),
          static_cast<float*>(middles.data_ptr()), static_cast<float*>(grades.data_ptr()), length, strata);
    } else {
      constexpr int THREADS = 256;
      dim3 layers(strata);
      level_by_blocks<rock_t, PEBBLE, 8><<<layers, THREADS, 0, shaft>>>(
          static_cast<const rock_t*>(heights.data_ptr()), static_cast<PEBBLE*>(levelled.data_ptr()),
          static_cast<float*>(middles.data_ptr()), static_cast<float*>(grades.data_ptr()), length, strata);
    }
    return true;
  });
}
