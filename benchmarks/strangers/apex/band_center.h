#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <cuda_runtime.h>

namespace banded {

constexpr int kLanes = 32;

// How an element becomes a number to sum, one kind at a time.
template <typename Kind>
struct AsSummed;

template <>
struct AsSummed<float> {
  static __device__ float of(const float* at) { return *at; }
};

template <>
struct AsSummed<at::Half> {
  static __device__ float of(const at::Half* at) { return static_cast<float>(*at); }
};

template <>
struct AsSummed<at::BFloat16> {
  static __device__ float of(const at::BFloat16* at) { return static_cast<float>(*at); }
};

// The least power of two that covers `side`.
inline int power_over(int side) {
  int power = 0;
  for (int covered = 1; covered < side; covered += covered) power++;
  return power;
}

// Row r of a square keeps columns r - reach to r, less their mean and times gain; the others become zero.
// threadIdx.y picks a row, its warp goes over the columns.
template <typename Kind, int kPower>
__global__ void band_center(Kind* centered, const Kind* raw, const float gain, const int reach, const int side) {
  constexpr int kColumns = 1 << kPower;
  constexpr int kSteps = kColumns < kLanes ? 1 : kColumns / kLanes;

  const int row = threadIdx.y + blockDim.y * blockIdx.y;
  if (row >= side) return;
  const size_t origin = (static_cast<size_t>(blockIdx.x) * side + row) * side;
  const int lowest = max(row - reach, 0);

  float value[kSteps];
  float total = 0.0f;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int column = s * kLanes + threadIdx.x;
    const bool inside = lowest <= column && column <= row;
    value[s] = inside ? AsSummed<Kind>::of(raw + origin + column) : 0.0f;
    total += value[s];
  }
#pragma unroll
  for (int apart = 1; apart < kLanes; apart += apart) total += __shfl_xor_sync(~0u, total, apart, kLanes);
  const float mean = total / (row - lowest + 1);

#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int column = s * kLanes + threadIdx.x;
    if (column >= side) continue;
    const bool inside = lowest <= column && column <= row;
    centered[origin + column] = static_cast<Kind>(inside ? gain * (value[s] - mean) : 0.0f);
  }
}

}  // namespace banded
