#ifndef DRIFTKIT_MAGNITUDE_SHARE_CUH_
#define DRIFTKIT_MAGNITUDE_SHARE_CUH_

#include <algorithm>
#include <numeric>

#include "lump.cuh"
#include "outcome.cuh"
#include "warp.cuh"

namespace driftkit {

namespace share {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define DRIFTKIT_GRID_CONTROL(VERB) asm volatile("griddepcontrol." VERB ";" ::: "memory")
#else
#define DRIFTKIT_GRID_CONTROL(VERB)
#endif

/*! Scales each element by its share of what the row weighs, and by its column's favour over a base. */
template <uint32_t kLump, typename Elem>
__global__ void ScaleByShareKernel(const Elem* __restrict__ given, const Elem* __restrict__ favour,
                                   Elem* __restrict__ scaled, const uint32_t cols,
                                   const uint32_t given_pitch, const uint32_t scaled_pitch,
                                   float base, float floor_weight) {
  extern __shared__ float weight_of_warp[];
  const uint32_t crew = warp::kLanes * blockDim.y;
  const uint32_t first = (threadIdx.y * warp::kLanes + threadIdx.x) * kLump;
  const Elem* given_row = given + static_cast<size_t>(blockIdx.x) * given_pitch;
  Elem* scaled_row = scaled + static_cast<size_t>(blockIdx.x) * scaled_pitch;

  DRIFTKIT_GRID_CONTROL("wait");

  float weight = 0.f;
  for (uint32_t col = first; col < cols; col += crew * kLump) {
    const auto piece = lump<Elem, kLump>::take(given_row + col);
#pragma unroll
    for (uint32_t n = 0; n < kLump; ++n) weight += fabsf(piece.at(n));
  }
  weight = warp::total(weight);
  if (threadIdx.x == 0) weight_of_warp[threadIdx.y] = weight;
  __syncthreads();
  weight = threadIdx.x < blockDim.y ? weight_of_warp[threadIdx.x] : 0.f;
  const float per_weight = 1.f / fmaxf(warp::total(weight), floor_weight);

  for (uint32_t col = first; col < cols; col += crew * kLump) {
    auto piece = lump<Elem, kLump>::take(given_row + col);
    const auto liking = lump<Elem, kLump>::take(favour + col);
#pragma unroll
    for (uint32_t n = 0; n < kLump; ++n) {
      const float magnitude = fabsf(piece.at(n));
      piece.put(n, piece.at(n) * (magnitude * per_weight) * (base + liking.at(n)));
    }
    piece.drop(scaled_row + col);
  }

  DRIFTKIT_GRID_CONTROL("launch_dependents");
}

template <typename Elem>
cudaError_t ScaleByShare(const Elem* given, const Elem* favour, Elem* scaled, uint32_t rows,
                         uint32_t cols, uint32_t given_pitch, uint32_t scaled_pitch,
                         float floor_weight, bool overlap, cudaStream_t stream) {
  constexpr uint32_t kMostLump = 16 / sizeof(Elem);
  const uint32_t elems = std::gcd(cols, kMostLump);
  const uint32_t warps = portions(std::min(cols / elems, 768u), warp::kLanes);
  const float base = 1.f;

  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = overlap ? 1 : 0;

  cudaLaunchConfig_t plan = {};
  plan.gridDim = dim3(rows);
  plan.blockDim = dim3(warp::kLanes, warps);
  plan.dynamicSmemBytes = warps * sizeof(float);
  plan.stream = stream;
  plan.attrs = &early;
  plan.numAttrs = 1;

  DRIFTKIT_WITH_LUMP(elems, kLump, {
    DRIFTKIT_TRY(cudaLaunchKernelEx(&plan, ScaleByShareKernel<kLump, Elem>, given, favour, scaled, cols,
                                    given_pitch, scaled_pitch, base, floor_weight));
  })
  return cudaSuccess;
}

}  // namespace share

}  // namespace driftkit

#endif  // DRIFTKIT_MAGNITUDE_SHARE_CUH_
