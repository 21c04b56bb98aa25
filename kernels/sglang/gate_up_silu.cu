// out[m, d] = silu(gate) * up, where gate = sum over k of x[m, k] * w[d, k] and up that of w[D + d], for
// few rows of x: bf16 in and out, float32 in between, one rounding.
//
// Any M and D; K is a multiple of 8. The weights are the 16-row operand of the tensor cores' multiply and
// rows of x its 8 columns, so that few rows waste none of it; a thread has a gate and its partner in its
// registers. A block owns 32 columns of out, and copies the next 64 of K while it multiplies those before.
#include <tune/tensor.h>
#include <cuda_bf16.h>

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kColumns = 8 * kWarps;  // of out, in a block; of w two rows for each
constexpr int kDepth = 64;             // of K, in a stage
constexpr int kStages = 3;
constexpr int kVector = 8;             // elements of a copy of 16 bytes
constexpr int kVectors = kDepth / kVector;
constexpr int kPitch = kDepth + kVector;  // eight rows of a matrix lie in different banks

// Copies kDepth of K of one row of a matrix, by the eight threads that have the vectors of a row; what
// is past the matrix becomes zero.
__device__ __forceinline__ void copy(__nv_bfloat16* to, const __nv_bfloat16* from, int row, int all,
                                     int k, int K) {
  const int column = threadIdx.x % kVectors * kVector;
  const bool inside = row < all && k + column < K;
  const size_t at = inside ? static_cast<size_t>(row) * K + k + column : 0;
  tune::cp_async<16>(tune::shared_address(to + column), from + at, inside ? 16 : 0);
}

// kRows: rows of x in a block, a multiple of 8. Grid: columns of out / 32, rows of x / kRows.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    gate_up_silu(__nv_bfloat16* __restrict__ out, const __nv_bfloat16* __restrict__ x,
                 const __nv_bfloat16* __restrict__ w, int M, int D, int K) {
  __shared__ __align__(16) __nv_bfloat16 weights[kStages][2 * kColumns][kPitch];
  __shared__ __align__(16) __nv_bfloat16 rows[kStages][kRows][kPitch];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int d0 = blockIdx.x * kColumns;
  const int m0 = blockIdx.y * kRows;
  const int steps = (K + kDepth - 1) / kDepth;

  // Of the 16 rows of a warp's tile the first eight are gates, the others what these are for.
  const auto copy_stage = [&](int step) {
    const int slot = step % kStages;
    for (int row = threadIdx.x / kVectors; step < steps && row < 2 * kColumns;
         row += kThreads / kVectors) {
      const int d = d0 + row / 16 * 8 + row % 8;
      const __nv_bfloat16* half = row % 16 < 8 ? w : w + static_cast<size_t>(D) * K;
      copy(weights[slot][row], half, d, D, step * kDepth, K);
      if (row < kRows) copy(rows[slot][row], x, m0 + row, M, step * kDepth, K);
    }
    tune::cp_async_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) copy_stage(step);

  float sums[kRows / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    tune::cp_async_wait<kStages - 2>();
    __syncthreads();
    copy_stage(step + kStages - 1);
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      unsigned a[4];
      tune::ldmatrix(a, tune::shared_address(
                            &weights[step % kStages][warp * 16 + lane % 16][k + lane / 16 * 8]));
#pragma unroll
      for (int tile = 0; tile < kRows / 8; ++tile) {
        unsigned b[2];
        tune::ldmatrix(b, tune::shared_address(
                              &rows[step % kStages][tile * 8 + lane % 8][k + lane / 8 % 2 * 8]));
        tune::mma<tune::bf16>(sums[tile], a, b);
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kRows / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int d = d0 + warp * 8 + lane / 4;
      const int m = m0 + tile * 8 + lane % 4 * 2 + i;
      const float gate = sums[tile][i];
      const float up = sums[tile][i + 2];
      const float value = gate / (1.0f + expf(-gate)) * up;
      if (m < M && d < D) out[static_cast<size_t>(m) * D + d] = __float2bfloat16(value);
    }
  }
}
