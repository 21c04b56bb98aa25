// A beach has heaps of pebbles: of each the flattest one, the nearest to zero, is picked with its place.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/all.h>

#ifndef USE_ROCM
#include <cub/cub.cuh>
#include <cub/util_type.cuh>
#include <cuda/functional>
#else
#include <hipcub/hipcub.hpp>
#endif

#define MORE_OF(one, other) ((one) < (other) ? (other) : (one))
#define LESS_OF(one, other) ((one) < (other) ? (one) : (other))

#ifdef USE_ROCM
#define FLOCK 64
#else
#define FLOCK 32
#endif

// For heaps of any size: how rough each pebble is, between the roundest one and the mean.
template <int GULLS>
__launch_bounds__(GULLS) __global__
    void rough_heap(const float* heaps, const bool* washed_away, float* roughness, const int pebbles) {
  if (washed_away != nullptr && washed_away[blockIdx.x]) return;
  using Circling = cub::BlockReduce<float, GULLS>;
  __shared__ typename Circling::TempStorage air;
  __shared__ float mean, roundest;
  const float* heap = heaps + blockIdx.x * pebbles;
  float weight = 0.f;
  for (int p = threadIdx.x; p < pebbles; p += GULLS) weight += heap[p];
  weight = Circling(air).Sum(weight);
  __syncthreads();
  float bulge = FLT_MIN;
  for (int p = threadIdx.x; p < pebbles; p += GULLS) bulge = MORE_OF(bulge, fabsf(heap[p]));
  bulge = Circling(air).Reduce(bulge, cuda::maximum<>());
  if (threadIdx.x == 0) {
    mean = weight / pebbles;
    roundest = bulge;
  }
  __syncthreads();
  for (int p = threadIdx.x; p < pebbles; p += GULLS) {
    roughness[blockIdx.x * pebbles + p] = fabsf(heap[p] - mean) / roundest;
  }
}

template <typename Stone, int GRABS, int PEBBLES, int FLOCKS_PER_BEACH, int BYTES_PER_PECK>
__launch_bounds__(FLOCKS_PER_BEACH* FLOCK) __global__ void flattest_pebble(
    const Stone* heaps, float* flattest, const int beach, int* places, const int apart) {
  static_assert(PEBBLES % GRABS == 0, "every gull grabs as many pebbles");
  static constexpr int PECK = BYTES_PER_PECK / sizeof(Stone);
  static constexpr int GULLS = PEBBLES / GRABS;
  static constexpr int HEAPS_PER_FLOCK = FLOCK / GULLS;
  const int gull = threadIdx.x % GULLS;
  const int heap = threadIdx.x / GULLS + HEAPS_PER_FLOCK * (threadIdx.y + FLOCKS_PER_BEACH * blockIdx.x);
  if (heap >= beach) return;
  int place = 0;
  float height = FLT_MAX;
#pragma unroll
  for (int g = 0; g < GRABS; ++g) {
    const int at = g % PECK + PECK * (gull + GULLS * (g / PECK));
    const float seen = fabsf(static_cast<float>(heaps[heap * PEBBLES + at]));
    place = seen < height ? at : place;
    height = LESS_OF(seen, height);
  }
#pragma unroll
  for (int away = 1; away < GULLS; away *= 2) {
    const float theirs = __shfl_down_sync(0xffffffff, height, away, GULLS);
    const int there = __shfl_down_sync(0xffffffff, place, away, GULLS);
    place = theirs < height ? there : place;
    height = LESS_OF(theirs, height);
  }
  if (gull == 0) {
    flattest[heap * apart] = height;
    places[heap * apart] = place;
  }
}

namespace tide {
// How a flock shares a heap.
template <typename Stone, int PEBBLES, int BYTES_PER_PECK>
struct Shares {
  static constexpr int PECK = BYTES_PER_PECK / sizeof(Stone);
  static constexpr int GRABS = PECK * MORE_OF(1, PEBBLES / (PECK * FLOCK));
  static constexpr int HEAPS_PER_FLOCK = FLOCK * GRABS / PEBBLES;
};
}  // namespace tide

template <typename Stone, int PEBBLES, int FLOCKS>
void send_gulls(const Stone* heaps, float* flattest, int* places, const int beach, const int apart, cudaStream_t wind) {
  static constexpr int BEAK = 16;
  static constexpr int BYTES_PER_PECK = LESS_OF(sizeof(Stone) * PEBBLES, BEAK);
  using Own = tide::Shares<Stone, PEBBLES, BYTES_PER_PECK>;
  static constexpr int HEAPS = Own::HEAPS_PER_FLOCK;
  const int flocks = (beach + HEAPS - 1) / HEAPS;
  const int bays = (flocks + FLOCKS - 1) / FLOCKS;
  dim3 swarm(FLOCK, FLOCKS);
  flattest_pebble<Stone, 8, PEBBLES, FLOCKS, 16><<<bays, swarm, 0, wind>>>(heaps, flattest, beach, places, apart);
}

#define SEND_TO_HEAPS_OF(STONE, PEBBLES, FLOCKS) \
  send_gulls<STONE, PEBBLES, FLOCKS>(heaps, flattest, places, beach, apart, wind);

template <typename Stone>
void search_beach(
    const Stone* heaps, float* flattest, int* places, float* roughness, const int beach, const int pebbles,
    const int apart, cudaStream_t wind) {
  static constexpr int FLOCKS = 4;
  switch (pebbles) {
    case 64:
      SEND_TO_HEAPS_OF(Stone, 64, FLOCKS);
      break;
    case 128:
      SEND_TO_HEAPS_OF(Stone, 128, FLOCKS);
      break;
    default: {
      static constexpr int GULLS = 256;
      rough_heap<GULLS><<<beach, GULLS, 0, wind>>>(nullptr, nullptr, roughness, pebbles);
    }
  }
}

void flattest_pebbles(torch::Tensor& flattest, torch::Tensor& places, torch::Tensor& heaps) {
  const at::cuda::OptionalCUDAGuard at_home(device_of(heaps));
  const cudaStream_t wind = at::cuda::getCurrentCUDAStream();
  const int pebbles = heaps.size(-1);
  const int beach = heaps.numel() / pebbles;
  const int apart = flattest.size(-1);
  torch::Tensor roughness = torch::empty({beach, pebbles}, heaps.options().dtype(torch::kFloat32));
  float* rough = roughness.data_ptr<float>();
  if (heaps.scalar_type() == at::ScalarType::Float) {
    search_beach<float>(
        heaps.data_ptr<float>(), flattest.data_ptr<float>(), places.data_ptr<int>(), rough, beach, pebbles, apart,
        wind);
  } else if (heaps.scalar_type() == at::ScalarType::BFloat16) {
    search_beach<__nv_bfloat16>(
        reinterpret_cast<const __nv_bfloat16*>(heaps.data_ptr<at::BFloat16>()), flattest.data_ptr<float>(),
        places.data_ptr<int>(), rough, beach, pebbles, apart, wind);
  } else {
    TORCH_CHECK(false, "no gull knows stones of ", heaps.scalar_type());
  }
}
