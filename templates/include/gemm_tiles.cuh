// Tiles of 16 columns and 8 tokens that a warp multiplies, of what waits in shared memory. A `Stage` says
// where eight neighbours along K of a column or of a token are: its weight(row, k) and token(token, k).
constexpr int kRowTiles = kTileN / kWarpsN / 16;
constexpr int kTokenTiles = kTokens / 8;
static_assert(kTileN % (16 * kWarpsN) == 0 && kTokens % 8 == 0);
static_assert(kTileK % (16 * kWarpsK) == 0 && kStages >= 2);

struct Sums {
  float values[kRowTiles][kTokenTiles][4];
};

// Multiplies 16 of K.
template <class Stage>
__device__ __forceinline__ void multiply(Sums& sums, const Stage& stage, int row, int k, int lane) {
  unsigned b[kTokenTiles][2];
  if constexpr (kTokenTiles == 1) {
    tune::ldmatrix(b[0], stage.token(lane % 8, k + lane / 8 % 2 * 8));
  } else {
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) {
      const int token = t * 8 + lane / 16 * 8 + lane % 8;
      unsigned both[4];
      tune::ldmatrix(both, stage.token(token, k + lane / 8 % 2 * 8));
      b[t][0] = both[0];
      b[t][1] = both[1];
      b[t + 1][0] = both[2];
      b[t + 1][1] = both[3];
    }
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    unsigned a[4];
    tune::ldmatrix(a, stage.weight(row + r * 16 + lane % 16, k + lane / 16 * 8));
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      tune::mma<@{ operand }@>(sums.values[r][t], a, b[t]);
    }
  }
}
//% if scales == "block"

// Adds sums under one scale a token.
__device__ __forceinline__ void add_scaled(Sums& sums, const Sums& fresh, const float* scales) {
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const float2 scale = scales_of(scales, t);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) add_scaled(sums.values[r][t], fresh.values[r][t], scale);
  }
}
//% endif
