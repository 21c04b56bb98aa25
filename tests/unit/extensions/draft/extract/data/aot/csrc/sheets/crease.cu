/*
 * An operator library that PyTorch would load ahead of time: invented for tests.
 *
 * A sheet has three panels side by side. The first is creased, and says how much is left of the lower one of the
 * other two.
 */
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/all.h>

#include "skein.cuh"
#include "workshop.h"

namespace crease {

template <typename Yarn>
__device__ __forceinline__ Yarn knoll(const Yarn& height) {
  const float h = skein::spun<float>(height);
  return skein::spun<Yarn>(1.0f / (1.0f + h * h));
}

template <typename Yarn>
__device__ __forceinline__ Yarn pleat(const Yarn& height) {
  constexpr float kPleats = 3.0f;
  const float h = skein::spun<float>(height) * kPleats;
  return skein::spun<Yarn>(fabsf(h - rintf(h)));
}

// One block for each sheet: folded[s, p] = Bend(left[s, p]) * the lower one of middle[s, p] and right[s, p].
template <typename Yarn, Yarn (*Bend)(const Yarn&)>
__global__ void fold_panels(Yarn* __restrict__ folded, const Yarn* __restrict__ sheets, const int panel) {
  constexpr int kEnds = skein::kPullBytes / sizeof(Yarn);
  using Bundle = skein::Skein<Yarn, kEnds>;
  const int64_t sheet = blockIdx.x;
  const Yarn* left = sheets + sheet * 3 * panel;
  const Yarn* middle = left + panel;
  const Yarn* right = middle + panel;
#pragma unroll 1
  for (int p = threadIdx.x; p < panel / kEnds; p += blockDim.x) {
    const Bundle creased = Bundle::pulled(left + p * kEnds);
    const Bundle over = Bundle::pulled(middle + p * kEnds);
    const Bundle under = Bundle::pulled(right + p * kEnds);
    Bundle flat;
#pragma unroll
    for (int e = 0; e < kEnds; ++e) flat[e] = Bend(creased[e]) * (over[e] < under[e] ? over[e] : under[e]);
    flat.laid(folded + sheet * panel + p * kEnds);
  }
}

}  // namespace crease

void fold_by_knolls(at::Tensor& folded, at::Tensor& sheets) {
  WOVEN(sheets);
  const int panel = sheets.size(-1) / 3;
  const int64_t count = sheets.numel() / sheets.size(-1);
  dim3 tables(count);

  const at::cuda::OptionalCUDAGuard at_home(device_of(sheets));
  const cudaStream_t belt = at::cuda::getCurrentCUDAStream();
  WEAVE_SHORT_YARNS(sheets.scalar_type(), yarn_t, [&] {
    const uint32_t ends = 16 / sizeof(yarn_t);
    dim3 hands(std::min(panel / ends, 1024U));
    crease::fold_panels<yarn_t, crease::knoll>
        <<<tables, hands, 0, belt>>>(
            static_cast<yarn_t*>(folded.data_ptr()), static_cast<yarn_t*>(sheets.data_ptr()), panel);
    return true;
  });
}

void fold_by_pleats(at::Tensor& folded, at::Tensor& sheets) {
  const int panel = sheets.size(-1) / 3;
  const int64_t count = sheets.numel() / sheets.size(-1);
  dim3 tables(count);
  const cudaStream_t belt = at::cuda::getCurrentCUDAStream();
  WEAVE_SHORT_YARNS(sheets.scalar_type(), yarn_t, [&] {
    const uint32_t ends = 16 / sizeof(yarn_t);
    dim3 hands(std::min(panel / ends, 1024U));
    crease::fold_panels<yarn_t, crease::pleat>
        <<<tables, hands, 0, belt>>>(
            static_cast<yarn_t*>(folded.data_ptr()), static_cast<yarn_t*>(sheets.data_ptr()), panel);
    return true;
  });
}

TORCH_LIBRARY_FRAGMENT(paper_folding, shelf) {
  shelf.def("fold_by_knolls(Tensor! folded, Tensor sheets) -> ()");
  shelf.impl("fold_by_knolls", torch::kCUDA, &fold_by_knolls);
}
