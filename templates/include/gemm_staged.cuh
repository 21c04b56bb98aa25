// Products of weights and rows of x that wait in shared memory, kStages of them: all threads copy, 16
// bytes at a time. (Bulk copies of rows by a warp of its own were slower on an H200.)
constexpr int kPitch = kTileK + 8;  // eight rows of a matrix lie in different banks
constexpr int kStageBytes = (kTileN + kTokens) * kPitch * 2;
constexpr int kWorkBytes = kStages * kStageBytes;
constexpr int kRowTiles = kTileN / kWarpsN / 16;
constexpr int kTokenTiles = kTokens / 8;
static_assert(kTileN % (16 * kWarpsN) == 0 && kTokens % 8 == 0);
static_assert(kTileK % (16 * kWarpsK) == 0 && kStages >= 2);

struct Sums {
  float values[kRowTiles][kTokenTiles][4];
};

// Where a lane's row of x is in a stage: one past the last is the last, what comes of it is not stored.
__device__ __forceinline__ tune::u32 token_at(tune::u32 stage, int token, int tokens) {
  return stage + (kTileN + min(token, tokens - 1)) * kPitch * 2;
}

// Multiplies a stage; warps that share K take turns along it.
__device__ __forceinline__ void multiply(Sums& sums, tune::u32 stage, int row, int k_warp, int lane,
                                         int tokens) {
#pragma unroll
  for (int step = 0; step < kTileK / 16 / kWarpsK; ++step) {
    const int k = (step * kWarpsK + k_warp) * 16;
    unsigned b[kTokenTiles][2];
    if constexpr (kTokenTiles == 1) {
      tune::ldmatrix(b[0], token_at(stage, lane % 8, tokens) + (k + lane / 8 % 2 * 8) * 2);
    } else {
#pragma unroll
      for (int t = 0; t < kTokenTiles; t += 2) {
        const int token = t * 8 + lane / 16 * 8 + lane % 8;
        unsigned both[4];
        tune::ldmatrix(both, token_at(stage, token, tokens) + (k + lane / 8 % 2 * 8) * 2);
        b[t][0] = both[0];
        b[t][1] = both[1];
        b[t + 1][0] = both[2];
        b[t + 1][1] = both[3];
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      unsigned a[4];
      tune::ldmatrix(a, stage + ((row + r * 16 + lane % 16) * kPitch + k + lane / 16 * 8) * 2);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        tune::mma<@{ operand }@>(sums.values[r][t], a, b[t]);
      }
    }
  }
}

//% if scales == "block"
// A stage is 128 of K: then its scales are multiplied in.
__device__ __forceinline__ void multiply_scaled(Sums& sums, tune::u32 stage, int row, int k_warp, int lane,
                                                int tokens, const float* scales) {
  static_assert(kTileK == kScaleDepth);
  Sums fresh = {};
  multiply(fresh, stage, row, k_warp, lane, tokens);
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const float2 scale = scales_of(scales, t);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) add_scaled(sums.values[r][t], fresh.values[r][t], scale);
  }
}

//% endif
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
//% if scales == "block"
    multiply_scaled(sums, stage_at(work, s), row, warp % kWarpsK, lane, task.tokens,
                    task.scales + s * kTokens);
//% else
    multiply(sums, stage_at(work, s), row, warp % kWarpsK, lane, task.tokens);
//% endif
  }
  tune::cp_async_wait<0>();
  __syncthreads();
  keep_tiles(parts, sums.values, row, warp % kWarpsK, lane, task.tokens);
}
