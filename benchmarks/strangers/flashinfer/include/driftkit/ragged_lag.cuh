#ifndef DRIFTKIT_RAGGED_LAG_CUH_
#define DRIFTKIT_RAGGED_LAG_CUH_

#include "lump.cuh"
#include "outcome.cuh"

namespace driftkit {

/*! Tracks of unlike lengths, one behind the other: track t has the moments from begins[t] to begins[t + 1]. */
template <typename Elem, typename Place>
struct ragged_tracks {
  Elem* change;
  const Place* begins;
  uint32_t voices;
  uint32_t points;

  __host__ __device__ size_t where(Place moment, uint32_t voice) const {
    return points * (voice + static_cast<size_t>(voices) * moment);
  }
};

/*! What each moment adds to the one `lag` before it; a track's first moments have nothing before them. */
template <uint32_t kLump, typename Elem, typename Place>
__global__ void LaggedChangeKernel(ragged_tracks<Elem, Place> tracks, const Elem* __restrict__ sound,
                                   uint32_t lag, uint32_t number) {
  const uint32_t voice = threadIdx.y, point = threadIdx.x * kLump;
  for (uint32_t track = blockIdx.x; track < number; track += gridDim.x) {
    const Place begin = tracks.begins[track], end = tracks.begins[track + 1];
    for (Place moment = begin; moment < end; ++moment) {
      const size_t here = tracks.where(moment, voice) + point;
      auto now = lump<Elem, kLump>::take(sound + here);
      if (moment >= begin + static_cast<Place>(lag)) {
        const size_t earlier = tracks.where(moment - lag, voice) + point;
        const auto then = lump<Elem, kLump>::take(sound + earlier);
#pragma unroll
        for (uint32_t n = 0; n < kLump; ++n) now.put(n, now.at(n) - then.at(n));
      }
      now.drop(tracks.change + here);
    }
  }
}

template <typename Elem, typename Place>
cudaError_t LaggedChange(const ragged_tracks<Elem, Place>& tracks, const Elem* sound, uint32_t lag,
                         uint32_t number, cudaStream_t stream) {
  constexpr uint32_t kPoints = 64, kLump = 16 / sizeof(Elem);
  if (tracks.points != kPoints || tracks.voices > 16) return cudaErrorInvalidValue;
  const dim3 crew(kPoints / kLump, tracks.voices);
  LaggedChangeKernel<kLump, Elem, Place><<<number, crew, 0, stream>>>(tracks, sound, lag, number);
  return cudaPeekAtLastError();
}

}  // namespace driftkit

#endif  // DRIFTKIT_RAGGED_LAG_CUH_
