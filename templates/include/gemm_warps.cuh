// Products by single warps, of boxes in shared memory: tiles of any 16 columns. A stage's warps share its K, each
// the part that is next to its neighbours'.
constexpr int kSteps = kTileK / 16 / kWarpsK;  // of 16 of K, of a warp in a stage

// A stage's boxes: of a row's eight words of 16 bytes a swizzle of 128 puts word i where i ^ row % 8 would be.
struct Stage {
  tune::u32 weights;
  tune::u32 tokens;

  __device__ __forceinline__ tune::u32 weight(int row, int k) const {
    return in_box(weights + k / kBoxDepth * kWeightBytes, row, k % kBoxDepth);
  }

  __device__ __forceinline__ tune::u32 token(int token, int k) const {
    return in_box(tokens + k / kBoxDepth * kTokenBytes, token, k % kBoxDepth);
  }

  static __device__ __forceinline__ tune::u32 in_box(tune::u32 box, int row, int k) {
    return box + row * 128 + (k / 8 ^ row % 8) * 16;
  }
};

__device__ __forceinline__ Stage boxes_of(tune::u32 work, int stage) {
  const tune::u32 weights = stage_at(work, stage);
//% if ahead
  return {weights, tokens_at(work, stage)};
//% else
  return {weights, weights + kBoxes * kWeightBytes};
//% endif
}

//% if scales == "block"
// What is under one scale is added up first. `scales`: of the stage's first 128 of K.
__device__ __forceinline__ void multiply_part(Sums& sums, const Stage& stage, int row, int k_warp, int lane,
                                              const float* scales) {
  constexpr int kTogether = kSteps < kScaleDepth / 16 ? kSteps : kScaleDepth / 16;
  static_assert(kSteps % kTogether == 0 && kScaleDepth / 16 % kTogether == 0);
#pragma unroll
  for (int first = 0; first < kSteps; first += kTogether) {
    const int k = (k_warp * kSteps + first) * 16;
    Sums fresh = {};
#pragma unroll
    for (int step = 0; step < kTogether; ++step) multiply(fresh, stage, row, k + step * 16, lane);
    add_scaled(sums, fresh, scales + k / kScaleDepth * kTokens);
  }
}
//% else
__device__ __forceinline__ void multiply_part(Sums& sums, const Stage& stage, int row, int k_warp, int lane) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    multiply(sums, stage, row, (k_warp * kSteps + step) * 16, lane);
  }
}
//% endif

__device__ __forceinline__ void add_products(unsigned char* memory, float* parts, const Task& task,
                                             const Boxes& boxes) {
  const tune::u32 work = tune::shared_address(memory);
  const tune::u32 full = stage_barriers();
  const tune::u32 empty = full + 8 * kStages;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int k_warp = warp % kWarpsK;
  const int row = warp / kWarpsK * (kTileN / kWarpsN);
  start_barriers(full, empty);
  Sums sums = {};
  if (warp == kWarps) {
    copy_stages(work, full, empty, boxes, task, lane);
  } else {
    meet_sharers();
//% if scales != "none"
    wait_for_inputs();
    stage_scales(task);
    tune::named_barrier_sync(1, kWarps * kWarp);
//% endif
    for (int s = 0; s < task.stages; ++s) {
      tune::mbarrier_wait(full + s % kStages * 8, s / kStages & 1);
//% if scales == "block"
      multiply_part(sums, boxes_of(work, s), row, k_warp, lane, task.scales + s * kBoxes * kTokens);
//% else
      multiply_part(sums, boxes_of(work, s), row, k_warp, lane);
//% endif
      __syncwarp();
      leave(empty, s, lane);
    }
    wait_for_inputs();  // the results are written to memory that others may still use
  }
  __syncthreads();
  if (warp == kWarps) return;
  keep_tiles(parts, sums.values, row, k_warp, lane, task.tokens);
}
