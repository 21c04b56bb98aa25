// out[m, n] = sum over k of x[m, k] * w[n, k], for few rows of x: bf16 in, float32 sums, bf16 or
// float32 out.
//
// Any M and N; K is a multiple of 8. The weights are the 16-row operand of the tensor cores'
// multiply and rows of x its 8 columns, so that few rows waste none of it. A block owns 64 columns of
// out, and copies the next 64 of K while it multiplies those before.
#include <tune/tensor.h>
#include <cuda_bf16.h>

#ifndef OUT
#define OUT bf16
#endif

struct bf16 {
  using Number = __nv_bfloat16;
};
struct fp32 {
  using Number = float;
};
using Number = OUT::Number;

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kColumns = 16 * kWarps;  // of out, in a block
constexpr int kDepth = 64;             // of K, in a stage
constexpr int kStages = 3;
constexpr int kVector = 8;             // elements of a copy of 16 bytes
constexpr int kPitch = kDepth + kVector;  // eight rows of a matrix lie in different banks

// Copies `rows` rows of a matrix, kDepth of K from `k` on; what is past the matrix becomes zero.
__device__ __forceinline__ void copy_rows(__nv_bfloat16 (*to)[kPitch], const __nv_bfloat16* from,
                                          int rows, int first, int all, int k, int K) {
  constexpr int kVectors = kDepth / kVector;
  for (int i = threadIdx.x; i < rows * kVectors; i += kThreads) {
    const int row = i / kVectors;
    const int column = i % kVectors * kVector;
    const bool inside = first + row < all && k + column < K;
    const size_t at = inside ? static_cast<size_t>(first + row) * K + k + column : 0;
    tune::cp_async<16>(tune::shared_address(&to[row][column]), from + at, inside ? 16 : 0);
  }
}

__device__ __forceinline__ void store(__nv_bfloat16* to, float value) {
  *to = __float2bfloat16(value);
}

__device__ __forceinline__ void store(float* to, float value) { *to = value; }

// kRows: rows of x in a block, a multiple of 8. Grid: columns of out / 64, rows of x / kRows.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    gemm_small_m(Number* __restrict__ out, const __nv_bfloat16* __restrict__ x,
                 const __nv_bfloat16* __restrict__ w, int M, int N, int K) {
  __shared__ __align__(16) __nv_bfloat16 weights[kStages][kColumns][kPitch];
  __shared__ __align__(16) __nv_bfloat16 rows[kStages][kRows][kPitch];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int n0 = blockIdx.x * kColumns;
  const int m0 = blockIdx.y * kRows;
  const int steps = (K + kDepth - 1) / kDepth;

  const auto copy = [&](int step) {
    if (step < steps) {
      copy_rows(weights[step % kStages], w, kColumns, n0, N, step * kDepth, K);
      copy_rows(rows[step % kStages], x, kRows, m0, M, step * kDepth, K);
    }
    tune::cp_async_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) copy(step);

  float sums[kRows / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    tune::cp_async_wait<kStages - 2>();
    __syncthreads();
    copy(step + kStages - 1);
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
    for (int i = 0; i < 4; ++i) {
      const int n = n0 + warp * 16 + lane / 4 + i / 2 * 8;
      const int m = m0 + tile * 8 + lane % 4 * 2 + i % 2;
      if (m < M && n < N) store(out + static_cast<size_t>(m) * N + n, sums[tile][i]);
    }
  }
}
