// Scales of tokens and columns, in shared memory: those of the columns and then of the tokens, or for
// every 128 of K those of the tokens, the columns' multiplied in.
//% if scales == "block"
constexpr int kScaleDepth = 64;  // elements of K, each two numbers, that share a scale
static_assert(kTileK % kScaleDepth == 0 && 128 % kTileN == 0 && kTokens % 8 == 0);

__device__ __forceinline__ void stage_scales(const Task& task) {
  const int blocks = task.stages * (kTileK / kScaleDepth);
  for (int i = threadIdx.x; i < blocks * kTokens; i += kWarps * kWarp) {
    const int block = i / kTokens;
    const int token = min(i % kTokens, task.tokens - 1);
    task.scales[i] = task.token_scales[block * task.token_pitch + token] * task.column_scales[block];
  }
}

// Of the two tokens that a thread has in its tile.
__device__ __forceinline__ float2 scales_of(const float* scales, int tile) {
  return *reinterpret_cast<const float2*>(scales + tile * 8 + threadIdx.x % 4 * 2);
}

__device__ __forceinline__ void add_scaled(float (&sums)[4], const float (&fresh)[4], float2 scale) {
  sums[0] = fmaf(fresh[0], scale.x, sums[0]);
  sums[1] = fmaf(fresh[1], scale.y, sums[1]);
  sums[2] = fmaf(fresh[2], scale.x, sums[2]);
  sums[3] = fmaf(fresh[3], scale.y, sums[3]);
}
//% else
// Of the tokens; on their way until add_products has ended.
__device__ __forceinline__ void stage_scales(const Task& task) {
  for (int i = threadIdx.x; i < task.tokens; i += kWarps * kWarp) {
    tune::cp_async<4>(tune::shared_address(task.scales + kTileN + i), task.token_scales + i);
  }
  tune::cp_async_commit();
}

// Of the columns, which never change: before the wait.
__device__ __forceinline__ void stage_column_scales(const Task& task) {
  for (int i = threadIdx.x; i < kTileN; i += kThreads) {
    const int column = min(i, kColumns - 1 - task.column);
    tune::cp_async<4>(tune::shared_address(task.scales + i), task.column_scales + column);
  }
  tune::cp_async_commit();
}
//% endif
