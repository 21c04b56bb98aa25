// Products of weights and rows of x that wait in shared memory, kStages of them: all threads copy, 16
// bytes at a time. (Bulk copies of rows by a warp of its own were slower on an H200.)
constexpr int kPitch = kTileK + 8;  // eight rows of a matrix lie in different banks
constexpr int kStageBytes = (kTileN + kTokens) * kPitch * 2;
constexpr int kWorkBytes = kStages * kStageBytes;

// Warps that share K take turns along a stage.
struct Stage {
  tune::u32 at;
  int row;
  int k_warp;
  int lane;
  int token_count;

  __device__ __forceinline__ tune::u32 weights(int tile, int step) const {
    return at + ((row + tile * 16 + lane_row(lane)) * kPitch + k(step) + lane_row_k(lane)) * 2;
  }

  // One past the last is the last, what comes of it is not stored.
  __device__ __forceinline__ tune::u32 tokens(int tile, int step) const {
    const int token = min(tile * 8 + lane_token(lane), token_count - 1);
    return at + ((kTileN + token) * kPitch + k(step) + lane_token_k(lane)) * 2;
  }

  __device__ __forceinline__ int k(int step) const { return (step * kWarpsK + k_warp) * 16; }
};

__device__ __forceinline__ void multiply_stage(Sums& sums, const Stage& stage) {
#pragma unroll
  for (int step = 0; step < kTileK / 16 / kWarpsK; ++step) {
    unsigned b[kTokenTiles][2];
    load_tokens(b, stage, step);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      unsigned a[4];
      tune::ldmatrix(a, stage.weights(r, step));
      multiply(sums.values[r], a, b);
    }
  }
}

__device__ __forceinline__ tune::u32 stage_at(tune::u32 work, int stage) {
  return work + stage % kStages * kStageBytes;
}

__device__ __forceinline__ void copy_weights(tune::u32 work, const Task& task, int stage) {
  const tune::u32 to = stage_at(work, stage);
#pragma unroll 8
  for (int i = threadIdx.x; i < kTileN * (kTileK / 8); i += kThreads) {
    const int row = i / (kTileK / 8);
    const int k = i % (kTileK / 8) * 8;
    tune::cp_async<16>(to + (row * kPitch + k) * 2, task.weights(row) + stage * kTileK + k);
  }
}

__device__ __forceinline__ void copy_tokens(tune::u32 work, const Task& task, int stage) {
  const tune::u32 to = stage_at(work, stage) + kTileN * kPitch * 2;
  for (int i = threadIdx.x; i < task.tokens * (kTileK / 8); i += kThreads) {
    const int token = i / (kTileK / 8);
    const int k = i % (kTileK / 8) * 8;
    tune::cp_async<16>(to + (token * kPitch + k) * 2,
                       task.x + static_cast<size_t>(token) * kDepth + stage * kTileK + k);
  }
}

__device__ __forceinline__ void add_products(unsigned char* memory, float* parts, const Task& task) {
  const tune::u32 work = tune::shared_address(memory);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int row = warp / kWarpsK * (kTileN / kWarpsN);
  constexpr int kAhead = kStages - 1;
  if constexpr (kEarlyLoads) {
    for (int s = 0; s < kAhead && s < task.stages; ++s) copy_weights(work, task, s);
  }
  wait_for_inputs();
//% if scales != "none"
  stage_scales(task);
//% endif
  for (int s = 0; s < kAhead; ++s) {  // the first group holds the early weights of all
    if (s < task.stages) {
      if constexpr (!kEarlyLoads) copy_weights(work, task, s);
      copy_tokens(work, task, s);
    }
    tune::cp_async_commit();
  }
  Sums sums = {};
  for (int s = 0; s < task.stages; ++s) {
    tune::cp_async_wait<kAhead - 1>();
    __syncthreads();
    if (s + kAhead < task.stages) {
      copy_weights(work, task, s + kAhead);
      copy_tokens(work, task, s + kAhead);
    }
    tune::cp_async_commit();
    const Stage stage = {stage_at(work, s), row, warp % kWarpsK, lane, task.tokens};
//% if scales == "block"
    static_assert(kTileK == kScaleDepth);
    Sums fresh = {};
    multiply_stage(fresh, stage);
    add_scaled(sums, fresh, task.scales + s * kTokens);
//% else
    multiply_stage(sums, stage);
//% endif
  }
  tune::cp_async_wait<0>();
  __syncthreads();
  keep_tiles(parts, sums.values, row, warp % kWarpsK, lane, task.tokens);
}
