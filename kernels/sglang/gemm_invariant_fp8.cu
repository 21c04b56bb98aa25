// y[t, n] = sum over k of x[t, k] * w[n, k] in fp8 e4m3 with scales, for any number of rows of x: float32
// sums, bf16 out. SCALES:
//   token  x_scale[t] and w_scale[n]
//   block  x_scale[k / 128][t], rows of whole 16 bytes, and w_scale[n / 128][k / 128]
//
// The bits of a row of y depend on that row and the weights alone: each of its numbers is added up by one
// warp, 32 of K after 32 and each 128 by themselves, in the same order for every number of rows. N is a
// multiple of 8 and K of 16, with SCALES=block of 128. The weights are the 16-row operand of the tensor
// cores' multiply and rows of x its 8 columns; a block owns 64 columns of y, and copies the next 128 of K
// while it multiplies those before.
#include <tune/tensor.h>
#include <cuda_bf16.h>

#ifndef SCALES
#define SCALES token
#endif

enum Scales { token, block };
using Byte = unsigned char;  // one e4m3

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kColumns = 16 * kWarps;     // of y, in a block
constexpr int kDepth = 128;               // of K, in a stage and under a scale
constexpr int kStages = 2;
constexpr int kVector = 16;               // bytes of a copy
constexpr int kPitch = kDepth + kVector;  // eight rows of a matrix lie in different banks

// Copies `rows` rows of a matrix, kDepth of K from `k` on; what is past the matrix becomes zero.
__device__ __forceinline__ void copy_rows(Byte (*to)[kPitch], const Byte* from, int rows, int first, int all, int k,
                                          int K) {
  for (int i = threadIdx.x; i < rows * (kDepth / kVector); i += kThreads) {
    const int row = i / (kDepth / kVector);
    const int column = i % (kDepth / kVector) * kVector;
    const bool inside = first + row < all && k + column < K;
    const size_t at = inside ? static_cast<size_t>(first + row) * K + k + column : 0;
    tune::cp_async<16>(tune::shared_address(&to[row][column]), from + at, inside ? 16 : 0);
  }
}

// kRows: rows of x in a block, a multiple of 8. Grid: columns of y / 64, rows of x / kRows.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    gemm_invariant_fp8(__nv_bfloat16* __restrict__ y, const Byte* __restrict__ x, const Byte* __restrict__ w,
                       const float* __restrict__ x_scale, const float* __restrict__ w_scale, int T, int N, int K) {
  __shared__ __align__(16) Byte weights[kStages][kColumns][kPitch];
  __shared__ __align__(16) Byte rows[kStages][kRows][kPitch];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int n0 = blockIdx.x * kColumns;
  const int t0 = blockIdx.y * kRows;
  const int steps = (K + kDepth - 1) / kDepth;

  const auto copy = [&](int step) {
    if (step < steps) {
      copy_rows(weights[step % kStages], w, kColumns, n0, N, step * kDepth, K);
      copy_rows(rows[step % kStages], x, kRows, t0, T, step * kDepth, K);
    }
    tune::cp_async_commit();
  };
  copy(0);

  float sums[kRows / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    copy(step + 1);
    tune::cp_async_wait<1>();
    __syncthreads();
    float fresh[kRows / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kDepth; k += 32) {
      unsigned a[4];
      tune::ldmatrix(a, tune::shared_address(&weights[step % kStages][warp * 16 + lane % 16][k + lane / 16 * 16]));
#pragma unroll
      for (int tile = 0; tile < kRows / 8; ++tile) {
        unsigned b[2];
        tune::ldmatrix(b, tune::shared_address(&rows[step % kStages][tile * 8 + lane % 8][k + lane / 8 % 2 * 16]));
        tune::mma<tune::e4m3>(fresh[tile], a, b);
      }
    }
    const float of_weights = SCALES == block ? w_scale[n0 / 128 * steps + step] : 1.0f;
#pragma unroll
    for (int tile = 0; tile < kRows / 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = min(t0 + tile * 8 + lane % 4 * 2 + i % 2, T - 1);
        const float of_row = SCALES == block ? x_scale[static_cast<size_t>(step) * ((T + 3) / 4 * 4) + t] : 1.0f;
        sums[tile][i] = fmaf(fresh[tile][i], of_weights * of_row, sums[tile][i]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int tile = 0; tile < kRows / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = n0 + warp * 16 + lane / 4 + i / 2 * 8;
      const int t = t0 + tile * 8 + lane % 4 * 2 + i % 2;
      if (t >= T || n >= N) continue;
      const float scale = SCALES == block ? 1.0f : x_scale[t] * w_scale[n];
      y[static_cast<size_t>(t) * N + n] = __float2bfloat16(sums[tile][i] * scale);
    }
  }
}
