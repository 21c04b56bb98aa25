// y[t, n] = sum over k of x[t, k] * w[n, k], for any number of rows of x: bf16 in and out, float32 sums.
//
// The bits of a row of y depend on that row and w alone: each of its numbers is added up by one warp, 16
// of K after 16, in the same order for every number of rows. K and N are multiples of 8. The weights are
// the 16-row operand of the tensor cores' multiply and rows of x its 8 columns; a block owns 64 columns
// of y, and copies the next 64 of K while it multiplies those before.
#include <tune/tensor.h>
#include <cuda_bf16.h>

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kColumns = 16 * kWarps;  // of y, in a block
constexpr int kDepth = 64;             // of K, in a stage
constexpr int kStages = 2;
constexpr int kPitch = kDepth + 8;     // eight rows of a matrix lie in different banks

// Copies `rows` rows of a matrix, kDepth of K from `k` on; what is past the matrix becomes zero.
__device__ __forceinline__ void copy_rows(__nv_bfloat16 (*to)[kPitch], const __nv_bfloat16* from, int rows,
                                          int first, int all, int k, int K) {
  for (int i = threadIdx.x; i < rows * (kDepth / 8); i += kThreads) {
    const int row = i / (kDepth / 8);
    const int column = i % (kDepth / 8) * 8;
    const bool inside = first + row < all && k + column < K;
    const size_t at = inside ? static_cast<size_t>(first + row) * K + k + column : 0;
    tune::cp_async<16>(tune::shared_address(&to[row][column]), from + at, inside ? 16 : 0);
  }
}

// kRows: rows of x in a block, a multiple of 8. Grid: columns of y / 64, rows of x / kRows.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    gemm_invariant(__nv_bfloat16* __restrict__ y, const __nv_bfloat16* __restrict__ x,
                   const __nv_bfloat16* __restrict__ w, int T, int N, int K) {
  __shared__ __align__(16) __nv_bfloat16 weights[kStages][kColumns][kPitch];
  __shared__ __align__(16) __nv_bfloat16 rows[kStages][kRows][kPitch];
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
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      unsigned a[4];
      tune::ldmatrix(a, tune::shared_address(&weights[step % kStages][warp * 16 + lane % 16][k + lane / 16 * 8]));
#pragma unroll
      for (int tile = 0; tile < kRows / 8; ++tile) {
        unsigned b[2];
        tune::ldmatrix(b, tune::shared_address(&rows[step % kStages][tile * 8 + lane % 8][k + lane / 8 % 2 * 8]));
        tune::mma<tune::bf16>(sums[tile], a, b);
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
      if (t < T && n < N) y[static_cast<size_t>(t) * N + n] = __float2bfloat16(sums[tile][i]);
    }
  }
}
