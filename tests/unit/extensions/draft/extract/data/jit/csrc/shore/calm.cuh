// Waves run onto a shore: where a wave with the shore under it is far below the highest crest, it is calmed.
#include <loom/cpu.h>
#include <loom/gpu.cuh>

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>

namespace {

struct Coast {
  const void* waves;
  const void* __restrict__ shore;
  void* calmed;
  int64_t waves_apart;
  int64_t calmed_apart;
  uint32_t num_waves;
  float drag;
};

constexpr uint32_t kBlockSize = 256;

// The highest crest that any thread has seen, for all of them.
LOOM_GPU float highest_of_all(float crest, float* buoys) {
  for (uint32_t apart = 1; apart < loom::kWarpThreads; apart <<= 1) {
    crest = fmaxf(crest, __shfl_xor_sync(0xffffffffu, crest, apart));
  }
  buoys[threadIdx.x / loom::kWarpThreads] = crest;
  __syncthreads();
  for (uint32_t buoy = 0; buoy < kBlockSize / loom::kWarpThreads; ++buoy) crest = fmaxf(crest, buoys[buoy]);
  __syncthreads();
  return crest;
}

template <int64_t kWidth, bool kOverlap, loom::fine Water>
__global__ void __launch_bounds__(kBlockSize) calm_waves(const __grid_constant__ Coast coast) {
  constexpr int64_t kVec = 8;
  __shared__ float buoys[kBlockSize / loom::kWarpThreads];
  const auto& [waves, shore, calmed, waves_apart, calmed_apart, num_waves, drag] = coast;
  loom::after_the_last<kOverlap>();
  for (uint32_t wave = blockIdx.x; wave < num_waves; wave += gridDim.x) {
    const Water* swell = loom::walk::offset<Water>(waves, wave * waves_apart);
    Water* still = loom::walk::offset<Water>(calmed, wave * calmed_apart);
    loom::Strand<Water, kVec> water, ground;
    float crest = -INFINITY;
    for (int64_t at = threadIdx.x * kVec; at < kWidth; at += kVec * kBlockSize) {
      water.draw(swell + at);
      ground.draw(static_cast<const Water*>(shore) + at);
      for (int64_t drop = 0; drop < kVec; ++drop) crest = fmaxf(crest, water.at(drop) + ground.at(drop));
    }
    crest = highest_of_all(crest, buoys);
    for (int64_t at = threadIdx.x * kVec; at < kWidth; at += kVec * kBlockSize) {
      water.draw(swell + at);
      ground.draw(static_cast<const Water*>(shore) + at);
      for (int64_t drop = 0; drop < kVec; ++drop) {
        const float below = crest - (water.at(drop) + ground.at(drop));
        water.put(drop, water.at(drop) / (1.0f + drag * below));
      }
      water.drop(still + at);
    }
  }
  loom::make_way<kOverlap>();
}

template <int64_t kWidth, bool kOverlap, typename Water>
struct Calm {
  static_assert(kWidth % 8 == 0);
  static constexpr auto weave = calm_waves<kWidth, kOverlap, Water>;

  static void settle(const tvm::ffi::TensorView waves, const tvm::ffi::TensorView shore,
                     const tvm::ffi::TensorView calmed, float drag) {
    const auto num_waves = static_cast<uint32_t>(waves.size(0));
    const auto coast = Coast{
        .waves = waves.data_ptr(),
        .shore = shore.data_ptr(),
        .calmed = calmed.data_ptr(),
        .waves_apart = waves.stride(0),
        .calmed_apart = calmed.stride(0),
        .num_waves = num_waves,
        .drag = drag,
    };
    shuttle::ThrownLaunchKernel(num_waves, kBlockSize, waves.device()).overlapping(kOverlap)(weave, coast);
  }
};

}  // namespace
