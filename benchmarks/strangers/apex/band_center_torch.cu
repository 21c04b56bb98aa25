#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#include "band_center.h"
#include "element_kinds.h"

namespace banded {
namespace squares {

template <typename Kind>
void center_all(Kind* centered, const Kind* raw, float gain, int reach, int squares, int side) {
  constexpr int kRowsTogether = 6;
  const dim3 team(kLanes, kRowsTogether);
  const dim3 teams(squares, (side + kRowsTogether - 1) / kRowsTogether);
  auto queue = at::cuda::getCurrentCUDAStream();
  switch (power_over(side)) {
    case 6:
      band_center<Kind, 6><<<teams, team, 0, queue>>>(centered, raw, gain, reach, side);
      return;
    case 7:
      band_center<Kind, 7><<<teams, team, 0, queue>>>(centered, raw, gain, reach, side);
      return;
    case 8:
      band_center<Kind, 8><<<teams, team, 0, queue>>>(centered, raw, gain, reach, side);
      return;
  }
  TORCH_INTERNAL_ASSERT(false, "a side of 33 to 256 was checked");
}

at::Tensor center(const at::Tensor& raw, double gain, int64_t reach) {
  TORCH_CHECK(raw.dim() == 3 && raw.size(1) == raw.size(2), "squares are wanted");
  const int squares = raw.size(0), side = raw.size(2);
  TORCH_CHECK(side > 32 && side <= 256, "a side of 33 to 256 is wanted");
  at::Tensor centered = at::empty_like(raw);
  BY_ELEMENT_KIND(raw.scalar_type(), a, "band_center",
                  center_all<kind_a>(MEMORY_OF(centered, kind_a), MEMORY_OF(raw, kind_a), gain, reach, squares, side);)
  return centered;
}

}  // namespace squares
}  // namespace banded

PYBIND11_MODULE(TORCH_EXTENSION_NAME, here) {
  here.def("center", &banded::squares::center, "center the bands of squares");
}
