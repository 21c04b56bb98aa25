/*# Sums of e4m3, 128 of K after 128, for gemm_invariant.cuh. A part of the tokens of 64 columns is a unit. #*/
//% set row_tiles = tile_n // (64 * groups)
//% set halves = 2 if tile_t > 128 else 1
//% set units = tile_k // 128 * row_tiles * halves
// The tensor cores keep about 14 bits of a sum of e4m3, so they add up one box, 128 of K; such sums@{ ", scaled," if scales == "block" else " are" }@
// are added in float32. kFlight of them, of kUnit tokens and 64 columns each, are on their way at a time.
constexpr int kFlight = @{ flight }@;
constexpr int kUnit = kTileT / @{ halves }@;
using Fresh = float[kUnit / 2];

// Begins to multiply a box: some tokens by 64 columns.
__device__ __forceinline__ void multiply(Fresh& fresh, tune::u32 weights, tune::u32 tokens) {
  tune::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kBox; k += 32) {
    tune::wgmma<@{ operand }@>(fresh, tune::matrix_descriptor<128>(weights + k), tune::matrix_descriptor<128>(tokens + k), k > 0);
  }
  tune::wgmma_commit();
}

//% if scales == "block"
// Adds the sums of a box, scaled: by the products of two scales, each rounded once, whatever the tile.
__device__ __forceinline__ void promote(float* sums, const Fresh& fresh, const float* of_tokens, float of_columns) {
#pragma unroll
  for (int i = 0; i < kUnit / 2; i += 4) {
    const float2 scale = *reinterpret_cast<const float2*>(of_tokens + i * 2 + threadIdx.x % 4 * 2);
    const float first = scale.x * of_columns, second = scale.y * of_columns;
    sums[i] = fmaf(fresh[i], first, sums[i]);
    sums[i + 1] = fmaf(fresh[i + 1], second, sums[i + 1]);
    sums[i + 2] = fmaf(fresh[i + 2], first, sums[i + 2]);
    sums[i + 3] = fmaf(fresh[i + 3], second, sums[i + 3]);
  }
}

//% else
// Adds the sums of a box.
__device__ __forceinline__ void promote(float* sums, const Fresh& fresh) {
#pragma unroll
  for (int i = 0; i < kUnit / 2; ++i) sums[i] += fresh[i];
}

// Asks for the scales of a tile: of the tokens, then of a warpgroup's columns. Both are there for its end.
__device__ __forceinline__ void stage_scales(float* scales, const float* x_scale, const float* w_scale,
                                             const Item& item, int tokens, int group) {
  const int column = item.column + group * kRowTiles * 64;
  for (int i = threadIdx.x % kGroupThreads; i < kTileT + kRowTiles * 64; i += kGroupThreads) {
    const float* from = i < kTileT ? x_scale + min(item.token + i, tokens - 1)
                                   : w_scale + min(column + i - kTileT, kColumns - 1);
    tune::cp_async<4>(tune::shared_address(scales + i), from);
  }
  tune::cp_async_commit();
}

// Two tokens of two columns, each times the product of its scales.
__device__ __forceinline__ float4 scaled(const float4& values, const float* scales, int token, int r) {
  const float2 of_tokens = *reinterpret_cast<const float2*>(scales + token + threadIdx.x % 4 * 2);
  const float* of_columns = scales + kTileT + r * 64 + threadIdx.x % kGroupThreads / kWarp * 16 + threadIdx.x % kWarp / 4;
  const float upper = of_columns[0], lower = of_columns[8];
  return {values.x * (of_tokens.x * upper), values.y * (of_tokens.y * upper), values.z * (of_tokens.x * lower),
          values.w * (of_tokens.y * lower)};
}

//% endif
// The sums of one part.
//% if scales == "block"
__device__ __forceinline__ void add_products(Sums& sums, const Memory& memory, Place& place, int group, int lane,
                                             const unsigned char* scales, const float* w_scale, int column, int part) {
//% else
__device__ __forceinline__ void add_products(Sums& sums, const Memory& memory, Place& place, int group, int lane) {
//% endif
#pragma unroll
  for (int which = 0; which < kPieces; ++which) set(sums, which, {0, 0, 0, 0});
//% if scales == "block"
  const float* of_columns[kRowTiles];  // at the part's first box
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int own = min(column + (group * kRowTiles + r) * 64, kColumns - 1);
    of_columns[r] = w_scale + own / 128 * kBlocks + part * kPartStages * kBoxes;
  }
//% endif
  Fresh fresh[kFlight];
#pragma unroll 1
  for (int s = 0; s < kPartStages; ++s) {
//% if scales == "block"
    float columns[kBoxes][kRowTiles];  // asked for before they are needed
#pragma unroll
    for (int i = 0; i < kBoxes * kRowTiles; ++i) {
      columns[i / kRowTiles][i % kRowTiles] = __ldg(of_columns[i % kRowTiles] + s * kBoxes + i / kRowTiles);
    }
    const float* tokens = reinterpret_cast<const float*>(scales + place.stage * kScalePitch);
//% endif
    const tune::u32 weights = memory.stages + place.stage * kStageBytes + group * kRowTiles * 64 * kBox;
    const tune::u32 rows = memory.stages + place.stage * kStageBytes + kBoxes * kWeightBytes;
    tune::mbarrier_wait(memory.full + place.stage * 8, place.parity);
//% macro begin(unit)
//%   set box = unit // (row_tiles * halves)
//%   set half = unit % halves
//%   set r = unit // halves % row_tiles
    multiply(fresh[@{ unit % flight }@], weights + @{ box }@ * kWeightBytes + @{ r }@ * 64 * kBox,
             rows + @{ box }@ * kTokenBytes + @{ half }@ * kUnit * kBox);
//% endmacro
//% for unit in range([flight, units] | min)
@{ begin(unit) }@
//% endfor
//% for unit in range(units)
//%   set box = unit // (row_tiles * halves)
//%   set half = unit % halves
//%   set r = unit // halves % row_tiles
    tune::wgmma_wait<@{ [flight, units - unit] | min - 1 }@>();
//%   if unit == units - 1
    leave(memory, place.stage, lane);
//%   endif
//%   if scales == "block"
    promote(sums[@{ r }@] + @{ half }@ * kUnit / 2, fresh[@{ unit % flight }@], tokens + @{ box }@ * kTileT + @{ half }@ * kUnit, columns[@{ box }@][@{ r }@]);
//%   else
    promote(sums[@{ r }@] + @{ half }@ * kUnit / 2, fresh[@{ unit % flight }@]);
//%   endif
//%   if unit + flight < units
@{ begin(unit + flight) }@
//%   endif
//% endfor
    place.advance();
  }
}
