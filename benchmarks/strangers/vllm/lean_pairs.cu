#include <algorithm>

#include <torch/all.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "float_kinds.h"

namespace leaning {

// The lower cell moves towards the upper one by its pull, and the upper one back by its push.
template <typename scalar_t, bool MIRRORED>
__device__ inline void lean(scalar_t* __restrict__ cells, int pair, int reach, float pull, float push) {
  const int lower = MIRRORED ? pair : pair + pair;
  const int upper = MIRRORED ? reach - 1 - pair : lower + 1;
  const float at_lower = static_cast<float>(cells[lower]);
  const float gap = static_cast<float>(cells[upper]) - at_lower;
  cells[upper] = static_cast<scalar_t>(at_lower + gap * (1.0f - push));
  cells[lower] = static_cast<scalar_t>(at_lower + gap * pull);
}

// Pairs are neighbours, or mirrored about the middle; cells from `reach` on stay as they are.
template <typename scalar_t, bool MIRRORED>
__global__ void lean_pairs_kernel(scalar_t* __restrict__ board,        // [boards, panels, cells]
                                  const scalar_t* __restrict__ leans,  // [stages, reach]: pulls, then pushes
                                  const int64_t* __restrict__ stage,   // [boards]
                                  const int64_t board_step, const int panels, const int cells,
                                  const int reach) {
  const int pairs = reach / 2;
  const scalar_t* pulls = leans + stage[blockIdx.x] * reach;
  const scalar_t* pushes = pulls + pairs;
  scalar_t* mine = board + blockIdx.x * board_step;
  for (int task = threadIdx.x; task < panels * pairs; task += blockDim.x) {
    const int pair = task % pairs;
    lean<scalar_t, MIRRORED>(mine + task / pairs * cells, pair, reach,
                             static_cast<float>(pulls[pair]), static_cast<float>(pushes[pair]));
  }
}

}  // namespace leaning

void lean_pairs(torch::Tensor& board,  // [boards, panels * cells], rows may lie apart
                const torch::Tensor& leans, const torch::Tensor& stage, int64_t cells, bool mirrored) {
  const int reach = leans.size(-1);
  TORCH_CHECK(reach % 2 == 0 && reach <= cells, "an even number of a panel's cells can lean");
  const int panels = board.size(-1) / cells;
  const int64_t board_step = board.stride(0);

  const dim3 per_board(std::min<int>(panels * (reach / 2), 256));
  const at::cuda::CUDAGuard device_of_board(board.device());
  const auto stream = at::cuda::getCurrentCUDAStream();
  FOR_FLOAT_KINDS(board, "lean_pairs", [&] {
    scalar_t* cells_ptr = board.data_ptr<scalar_t>();
    const scalar_t* leans_ptr = leans.data_ptr<scalar_t>();
    if (!mirrored) {
      leaning::lean_pairs_kernel<scalar_t, false><<<stage.numel(), per_board, 0, stream>>>(
          cells_ptr, leans_ptr, stage.data_ptr<int64_t>(), board_step, panels, cells, reach);
    } else {
      leaning::lean_pairs_kernel<scalar_t, true><<<stage.numel(), per_board, 0, stream>>>(
          cells_ptr, leans_ptr, stage.data_ptr<int64_t>(), board_step, panels, cells, reach);
    }
  });
}
