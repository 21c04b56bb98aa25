#include <ATen/cuda/CUDAContext.h>

#include <cuda/std/limits>

#include "guards.h"

static constexpr int kTroopsPerBlock = 4;

// A troop a token. Entries above nought count in hundredths of the highest, those below of the lowest.
template <typename T>
__global__ void lopsided_codes_kernel(
    const T* __restrict__ tokens,
    int8_t* __restrict__ codes,
    float* __restrict__ reaches,
    const int64_t count,
    const int64_t width) {
  const int lane = threadIdx.x % kTroop;
  const int64_t token = int64_t(kTroopsPerBlock) * blockIdx.x + threadIdx.x / kTroop;
  if (token < count) {
    const T* entries = tokens + width * token;
    float up = 0.f, down = 0.f;
    for (int64_t e = lane; e < width; e += kTroop) {
      const float entry = static_cast<float>(entries[e]);
      up = fmaxf(up, entry);
      down = fmaxf(down, -entry);
    }
    const float least = cuda::std::numeric_limits<float>::min();
    up = fmaxf(troop_peak(up), least);
    down = fmaxf(troop_peak(down), least);
    if (lane < 2) reaches[2 * token + lane] = lane == 0 ? down : up;

    for (int64_t e = lane; e < width; e += kTroop) {
      const float entry = static_cast<float>(entries[e]);
      const float hundredths = 100.f * (entry / (entry < 0.f ? down : up));
      codes[width * token + e] = static_cast<int8_t>(__float2int_rn(hundredths));
    }
  }
}

void lopsided_codes(torch::Tensor tokens, torch::Tensor codes, torch::Tensor reaches) {
  MUST_LIE_DENSE_ON_GPU(tokens);
  MUST_LIE_DENSE_ON_GPU(codes);
  TORCH_CHECK(reaches.numel() == 2 * tokens.size(0), "a token has two reaches");
  const int64_t count = tokens.size(0);
  const int64_t width = tokens.size(1);
  const dim3 troops(kTroopsPerBlock * kTroop);
  const dim3 blocks((count + kTroopsPerBlock - 1) / kTroopsPerBlock);

  WITH_SHORT_FLOAT(tokens, entry_t, [&] {
    lopsided_codes_kernel<entry_t><<<blocks, troops, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const entry_t*>(tokens.const_data_ptr()),
        codes.data_ptr<int8_t>(),
        reaches.data_ptr<float>(),
        count,
        width);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}
