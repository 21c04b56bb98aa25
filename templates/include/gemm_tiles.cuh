// Tiles of 16 columns and 8 tokens that a warp multiplies, of what waits in shared memory. A `Stage` says
// where a lane finds what it loads for a multiply of 16 of K: its weights(tile, step) and its tokens(tile, step).
constexpr int kRowTiles = kTileN / kWarpsN / 16;
constexpr int kTokenTiles = kTokens / 8;
static_assert(kTileN % (16 * kWarpsN) == 0 && kTokens % 8 == 0);
static_assert(kTileK % (16 * kWarpsK) == 0 && kStages >= 2);

struct Sums {
  float values[kRowTiles][kTokenTiles][4];
};

// The row of w whose 16 bytes a lane's address is for, of a tile, and where along K they are.
__device__ __forceinline__ int lane_row(int lane) { return lane % 16; }
__device__ __forceinline__ int lane_row_k(int lane) { return lane / 16 * 8; }

// The same of x; where there are tiles enough, of two.
__device__ __forceinline__ int lane_token(int lane) { return (kTokenTiles == 1 ? 0 : lane / 16 * 8) + lane % 8; }
__device__ __forceinline__ int lane_token_k(int lane) { return lane / 8 % 2 * 8; }

template <class Stage>
__device__ __forceinline__ void load_tokens(unsigned (&b)[kTokenTiles][2], const Stage& stage, int step) {
  if constexpr (kTokenTiles == 1) {
    tune::ldmatrix(b[0], stage.tokens(0, step));
  } else {
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) {
      unsigned both[4];
      tune::ldmatrix(both, stage.tokens(t, step));
      b[t][0] = both[0];
      b[t][1] = both[1];
      b[t + 1][0] = both[2];
      b[t + 1][1] = both[3];
    }
  }
}

__device__ __forceinline__ void multiply(float (&sums)[kTokenTiles][4], const unsigned (&a)[4],
                                         const unsigned (&b)[kTokenTiles][2]) {
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) tune::mma<@{ operand }@>(sums[t], a, b[t]);
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
