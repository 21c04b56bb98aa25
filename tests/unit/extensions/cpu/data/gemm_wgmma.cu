// c[M][N] = x[M][K] w[N][K]^T with wgmma: a warp fetches tiles by tensor maps into a ring, a warpgroup
// multiplies them, and a tensor store writes the result. `broken` chooses a mistake.
#include <tune/wgmma.h>

enum Broken { none, no_wait, wrong_parity, too_few_bytes, reused_early, no_wgmma_fence, no_store_fence, no_init_fence,
              wrong_swizzle, no_commit, ends_early };
constexpr int kRows = 64, kColumns = 16, kTile = 64, kStages = 3;
constexpr int kWeightBytes = kRows * 128, kTokenBytes = kColumns * 128, kStageBytes = kWeightBytes + kTokenBytes;
constexpr int kSharedBytes = kStages * kStageBytes + kColumns * kRows * 4 + 16 * kStages;

__device__ void multiply(const tune::TensorMap& cmap, const tune::TensorMap& xmap, const tune::TensorMap& wmap, int K,
                         int broken) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned base = tune::shared_address(shared), out = base + kStages * kStageBytes;
  const unsigned full = out + kColumns * kRows * 4, empty = full + 8 * kStages;
  const int tiles = (K + kTile - 1) / kTile, thread = threadIdx.x, n0 = blockIdx.x * kRows, m0 = blockIdx.y * kColumns;
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      tune::mbarrier_init(full + 8 * i, 1);
      tune::mbarrier_init(empty + 8 * i, 4);
    }
    if (broken != no_init_fence) tune::fence_mbarrier_init();
  }
  __syncthreads();
  if (thread >= 128) {
    for (int tile = 0; thread == 128 && tile < tiles; ++tile) {
      const int slot = tile % kStages, round = tile / kStages;
      const unsigned to = base + slot * kStageBytes;
      if (broken != reused_early) tune::mbarrier_wait(empty + 8 * slot, broken == wrong_parity ? round & 1 : (round & 1) ^ 1);
      tune::mbarrier_arrive_expect_tx(full + 8 * slot, broken == too_few_bytes ? kWeightBytes : kStageBytes);
      tune::tensor_load_2d(to, wmap, tile * kTile, n0, full + 8 * slot);
      tune::tensor_load_2d(to + kWeightBytes, xmap, tile * kTile, m0, full + 8 * slot);
    }
    return;
  }
  float sums[kColumns / 2];
  for (int tile = 0; tile < tiles; ++tile) {
    const int slot = tile % kStages;
    const unsigned weights = base + slot * kStageBytes, tokens = weights + kWeightBytes;
    if (broken != no_wait) tune::mbarrier_wait(full + 8 * slot, tile / kStages & 1);
    if (broken != no_wgmma_fence) tune::wgmma_fence();
    for (int k = 0; k < kTile; k += 16) {
      const auto at = [&](unsigned matrix) {
        return broken == wrong_swizzle ? tune::matrix_descriptor<64>(matrix + k * 2 % 64, 1024)
                                       : tune::matrix_descriptor<128>(matrix + k * 2);
      };
      tune::wgmma<tune::bf16>(sums, at(weights), at(tokens), tile > 0 || k > 0);
    }
    if (broken != no_commit) tune::wgmma_commit();
    tune::wgmma_wait<0>();
    if (thread % 32 == 0) tune::mbarrier_arrive(empty + 8 * slot);
  }
  tune::wgmma_keep(sums);
  float* const tile = reinterpret_cast<float*>(shared + kStages * kStageBytes);
  for (int i = 0; i < kColumns / 2; ++i)
    tile[(i / 4 * 8 + thread % 4 * 2 + i % 2) * kRows + thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8] = sums[i];
  if (broken != no_store_fence) tune::fence_proxy_async();
  tune::named_barrier_sync(1, 128);
  if (thread == 0) {
    tune::tensor_store_2d(cmap, out, n0, m0);
    tune::bulk_commit();
    if (broken != ends_early) tune::bulk_wait<0>();
  }
}

#ifdef __CUDA_ON_HOST__
using u64 = unsigned long long;
extern "C" __global__ void gemm(float* c, const unsigned short* x, const unsigned short* w, const int* sizes) {
  const u64 M = sizes[0], N = sizes[1], K = sizes[2];
  const auto map = [&](const unsigned short* from, u64 rows, unsigned box) {
    return tune::make_tensor_map<2>(from, 2, {K, rows}, {2 * K}, {kTile, box}, 128);
  };
  multiply(tune::make_tensor_map<2>(c, 4, {N, M}, {4 * N}, {kRows, kColumns}, 0), map(x, M, kColumns), map(w, N, kRows), K,
           sizes[3]);
}
#else
extern "C" __global__ void __launch_bounds__(160) gemm(const __grid_constant__ tune::TensorMap cmap,
    const __grid_constant__ tune::TensorMap xmap, const __grid_constant__ tune::TensorMap wmap, int K) {
  multiply(cmap, xmap, wmap, K, none);
}
#endif
