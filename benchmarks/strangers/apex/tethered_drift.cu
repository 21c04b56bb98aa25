#include <ATen/cuda/CUDAContext.h>
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "element_kinds.h"

#define TEAM 320
#define EACH 3

// Where a parameter is drawn back to its home: in how it moves, or after it has moved.
enum Tether : int { PULLS_THE_SPEED = 0, PULLS_THE_PLACE = 1 };

// A drifting parameter: the slope speeds it up, a drag that grows with the speed slows it down.
template <typename Kind>
__global__ void tethered_drift(Kind* __restrict__ place, float* __restrict__ speed, const Kind* __restrict__ home,
                               const Kind* __restrict__ slope, const int64_t length, const float pace,
                               const float drag, const float rough, const float pull, const float unscale,
                               const Tether tether) {
  const int64_t stride = (int64_t)TEAM * EACH * gridDim.x;
  for (int64_t base = (int64_t)TEAM * EACH * blockIdx.x; base < length; base += stride) {
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const int64_t at = base + e * TEAM + threadIdx.x;
      if (at >= length) break;
      const float here = static_cast<float>(place[at]);
      const float away = here - static_cast<float>(home[at]);
      const float before = speed[at];
      float push = -static_cast<float>(slope[at]) * unscale;
      if (tether == PULLS_THE_SPEED) push -= pull * away;
      const float slowed = before - drag * before * fabsf(before) / (fabsf(before) + rough);
      const float after = slowed + pace * push;
      float there = here + after;
      if (tether == PULLS_THE_PLACE) there -= pull * away;
      speed[at] = after;
      place[at] = static_cast<Kind>(there);
    }
  }
}

void drift(at::Tensor place, at::Tensor speed, at::Tensor home, at::Tensor slope, double pace, double half_life,
           double rough, double pull, double loss_scale, int64_t tether) {
  TORCH_CHECK(place.numel() == speed.numel() && place.numel() == home.numel(), "these are not of one model");
  const int64_t length = slope.numel();
  const int64_t wanted = (length + TEAM * EACH - 1) / (TEAM * EACH);
  const unsigned teams = std::min<int64_t>(wanted, 65535);
  const float drag = 1.0 - std::exp2(-1.0 / half_life);
  auto queue = at::cuda::getCurrentCUDAStream();
  BY_ELEMENT_KIND(
      place.scalar_type(), model, "tethered_drift",
      tethered_drift<kind_model><<<teams, TEAM, 0, queue>>>(
          MEMORY_OF(place, kind_model), MEMORY_OF(speed, float), MEMORY_OF(home, kind_model),
          MEMORY_OF(slope, kind_model), length, pace, drag, rough, pull, 1.0 / loss_scale,
          static_cast<Tether>(tether));)
  AT_CUDA_CHECK(cudaGetLastError());
}
