// c[M][N] = x[M][K] w[N][K]^T with mma and a ring of cp.async; tiles of 32 x 32 x 32, K a multiple of 8.
// The fourth size chooses a mistake: 1 waits for one group too few, 2 leaves the barrier out, 3 commits nothing.
#include <tune/tensor.h>

using bf16 = unsigned short;
constexpr int kTile = 32, kPitch = kTile + 8, kStages = 3;

__device__ void copy_rows(bf16* to, const bf16* from, int first, int rows, int k0, int K) {
  const int row = threadIdx.x / 4, k = k0 + threadIdx.x % 4 * 8;
  const bool inside = first + row < rows && k < K;
  const bf16* source = inside ? from + (size_t)(first + row) * K + k : from;
  tune::cp_async<16>(tune::shared_address(to + row * kPitch + threadIdx.x % 4 * 8), source, inside ? 16 : 0);
}

extern "C" __global__ void __launch_bounds__(128) gemm(float* c, const bf16* x, const bf16* w, const int* sizes) {
  __shared__ __align__(16) bf16 xs[kStages][kTile * kPitch], ws[kStages][kTile * kPitch];
  const int M = sizes[0], N = sizes[1], K = sizes[2], broken = sizes[3];
  const int m0 = blockIdx.y * kTile, n0 = blockIdx.x * kTile, tiles = (K + kTile - 1) / kTile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp / 2 * 16, column = warp % 2 * 16;
  float sums[2][4] = {};
  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      copy_rows(xs[tile % kStages], x, m0, M, tile * kTile, K);
      copy_rows(ws[tile % kStages], w, n0, N, tile * kTile, K);
    }
    if (broken != 3) tune::cp_async_commit();
  };
  for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    if (broken == 1)
      tune::cp_async_wait<kStages - 1>();
    else
      tune::cp_async_wait<kStages - 2>();
    if (broken != 2) __syncthreads();
    fetch(tile + kStages - 1);
    const bf16 *xt = xs[tile % kStages], *wt = ws[tile % kStages];
    for (int k = 0; k < kTile; k += 16) {
      unsigned a[4], b[4];
      tune::ldmatrix(a, tune::shared_address(xt + (row + lane % 16) * kPitch + k + lane / 16 * 8));
      tune::ldmatrix(b, tune::shared_address(wt + (column + lane % 8 + lane / 16 * 8) * kPitch + k + lane / 8 % 2 * 8));
      const unsigned low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
      tune::mma<tune::bf16>(sums[0], a, low);
      tune::mma<tune::bf16>(sums[1], a, high);
    }
  }
  for (int j = 0; j < 2; ++j)
    for (int i = 0; i < 4; ++i) {
      const int m = m0 + row + lane / 4 + i / 2 * 8, n = n0 + column + j * 8 + lane % 4 * 2 + i % 2;
      if (m < M && n < N) c[(size_t)m * N + n] = sums[j][i];
    }
}
