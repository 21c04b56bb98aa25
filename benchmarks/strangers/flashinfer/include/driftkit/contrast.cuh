#ifndef DRIFTKIT_CONTRAST_CUH_
#define DRIFTKIT_CONTRAST_CUH_

#include "outcome.cuh"
#include "warp.cuh"

namespace driftkit {

namespace contrast {

/*! Stretches a row over [0, 1] and bends it; rows bend each by its own power where powers are given. */
template <uint32_t kCrew, typename Elem>
__global__ void StretchKernel(Elem* dull, Elem* vivid, Elem* powers, Elem power_of_all, uint32_t span) {
  constexpr uint32_t kWarps = kCrew / warp::kLanes;
  __shared__ warp::range of_warp[kWarps];
  const uint32_t me = threadIdx.x;
  const Elem* row = dull + size_t(span) * blockIdx.x;

  warp::range seen{3.4e38f, -3.4e38f};
  for (uint32_t at = me; at < span; at += kCrew) {
    const float shade = row[at];
    seen = warp::join(seen, warp::range{shade, shade});
  }
  seen = warp::extent(seen);
  if (me % warp::kLanes == 0) of_warp[me / warp::kLanes] = seen;
  __syncthreads();
  for (const warp::range& other : of_warp) seen = warp::join(seen, other);

  const float power = powers ? powers[blockIdx.x] : power_of_all;
  const float breadth = fmaxf(seen.high - seen.low, 1e-20f);
  Elem* bent = vivid + size_t(span) * blockIdx.x;
  for (uint32_t at = me; at < span; at += kCrew) bent[at] = powf((row[at] - seen.low) / breadth, power);
}

template <typename Elem>
cudaError_t Stretch(Elem* dull, Elem* vivid, Elem* powers, Elem power_of_all, uint32_t rows,
                    uint32_t span, cudaStream_t stream = nullptr) {
  constexpr uint32_t kCrew = 384;
  void* handed[] = {&dull, &vivid, &powers, &power_of_all, &span};
  const void* entry = reinterpret_cast<const void*>(&StretchKernel<kCrew, Elem>);
  DRIFTKIT_TRY(cudaLaunchKernel(entry, dim3(rows), dim3(kCrew), handed, 0, stream));
  return cudaSuccess;
}

}  // namespace contrast

}  // namespace driftkit

#endif  // DRIFTKIT_CONTRAST_CUH_
