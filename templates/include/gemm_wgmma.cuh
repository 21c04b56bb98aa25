// Products on Hopper's tensor cores by warpgroups: a warp of its own copies boxes of 64 of K, as tensor
// maps say, into kStages places in shared memory; the weights are the 64-row operand, or tokens are
// (`token_rows`), for tiles of any 8 columns. Of blocks that share x each copies some rows of every box of
// tokens to all. Weights, which never change, may have `ahead` more places than tokens: what comes before the
// wait fills them.
#include <tune/wgmma.h>

constexpr int kBoxDepth = 64;  // elements of K: rows of 128 bytes, which are swizzled
constexpr int kBoxes = kTileK / kBoxDepth;
constexpr int kWeightBytes = kTileN * kBoxDepth * 2;  // of a box
constexpr int kTokenBytes = kTokens * kBoxDepth * 2;
constexpr int kOwnTokens = kTokens / kShare;  // rows of a box that this block copies
constexpr int kStageBytes = kBoxes * (kWeightBytes + kTokenBytes);
//% if ahead
constexpr int kTokenStages = kStages - @{ ahead }@;
constexpr int kTokensAt = kStages * kBoxes * kWeightBytes;
constexpr int kWorkBytes = kTokensAt + kTokenStages * kBoxes * kTokenBytes;
static_assert(kTokenStages >= 2);
//% else
constexpr int kWorkBytes = kStages * kStageBytes;
//% endif
constexpr int kGroupWarps = 4;
constexpr int kGroupsN = kWarpsN / kGroupWarps;  // warpgroups side by side over the columns
constexpr int kRowTiles = @{ high }@ / kGroupsN / 64;
static_assert(kWarpsN % kGroupWarps == 0 && @{ high }@ % (64 * kGroupsN) == 0 && kOwnTokens % 8 == 0);
static_assert(kTileK % (kBoxDepth * kWarpsK) == 0 && kStages >= 2 && kWeightBytes % 1024 == 0);

// Where the boxes of a block's stages come from.
struct Boxes {
  const tune::TensorMap& weights;
  const tune::TensorMap& tokens;
  int k;  // at the first stage
};

//% if ahead
__device__ __forceinline__ tune::u32 stage_at(tune::u32 work, int stage) {
  return work + stage % kStages * kBoxes * kWeightBytes;
}

__device__ __forceinline__ tune::u32 tokens_at(tune::u32 work, int stage) {
  return work + kTokensAt + stage % kTokenStages * kBoxes * kTokenBytes;
}
//% else
__device__ __forceinline__ tune::u32 stage_at(tune::u32 work, int stage) {
  return work + stage % kStages * kStageBytes;
}
//% endif

__device__ __forceinline__ void copy_weights(tune::u32 work, tune::u32 full, const Boxes& boxes,
                                             const Task& task, int stage, tune::u64 policy) {
  const tune::u32 barrier = full + stage % kStages * 8;
  for (int box = 0; box < kBoxes; ++box) {
    const tune::u32 to = stage_at(work, stage) + box * kWeightBytes;
    const int k = boxes.k + stage * kTileK + box * kBoxDepth;
    const int at = @{ "2 * k" if scales != "none" else "k" }@;
//% if epilogue == "silu"
    if constexpr (kStreaming) {
      tune::tensor_load_3d(to, boxes.weights, at, 0, task.column / 2, barrier, policy);
    } else {
      tune::tensor_load_3d(to, boxes.weights, at, 0, task.column / 2, barrier);
    }
//% else
    if constexpr (kStreaming) {
      tune::tensor_load_2d(to, boxes.weights, at, task.column, barrier, policy);
    } else {
      tune::tensor_load_2d(to, boxes.weights, at, task.column, barrier);
    }
//% endif
  }
}

__device__ __forceinline__ void copy_tokens(tune::u32 work, tune::u32 full, const Boxes& boxes,
                                            const Task& task, int stage) {
  for (int box = 0; box < kBoxes; ++box) {
    const int row = share_rank() * kOwnTokens;
    const tune::u32 to = @{ "tokens_at(work, stage)" if ahead else "stage_at(work, stage) + kBoxes * kWeightBytes" }@ + box * kTokenBytes + row * 128;
    const tune::u32 barrier = full + stage % kStages * 8;
    const int k = boxes.k + stage * kTileK + box * kBoxDepth;
    const int at = @{ "2 * k" if scales != "none" else "k" }@;
//% if share > 1
    tune::u32 sharers = 0;
#pragma unroll
    for (int i = 0; i < kShare; ++i) sharers |= 1u << sharer(i);
    tune::tensor_multicast_2d(to, boxes.tokens, at, task.token + row, barrier, sharers);
//% else
    tune::tensor_load_2d(to, boxes.tokens, at, task.token + row, barrier);
//% endif
  }
}

// For every place one that counts what comes, and behind these one that counts who has read it.
__device__ __forceinline__ tune::u32 stage_barriers() {
  __shared__ tune::u64 barriers[2 * kStages];
  return tune::shared_address(barriers);
}

// The barriers of the blocks that share x are there; nothing goes to them before.
__device__ __forceinline__ void meet_sharers() {
  if constexpr (kShare > 1) {
    __syncwarp();
    tune::cluster_wait();
  }
}

// A warp has read a stage's place; whoever copies there hears of it.
__device__ __forceinline__ void leave(tune::u32 empty, int stage, int lane) {
  const tune::u32 barrier = empty + stage % kStages * 8;
//% if share > 1
  if (lane < kShare) tune::cluster_mbarrier_arrive(tune::map_shared(barrier, sharer(lane)));
//% else
  if (lane == 0) tune::mbarrier_arrive(barrier);
//% endif
}

//% if share > 1
// All warps that read what this block has copied have arrived here: it may end. A cluster's barrier in this
// place would wait for stores too.
__device__ __forceinline__ void outlive_sharers(const Task& task) {
  const tune::u32 empty = stage_barriers() + 8 * kStages;
  if (threadIdx.x != kWarps * kWarp) return;
  for (int s = max(0, task.stages - kStages); s < task.stages; ++s) {
    tune::mbarrier_wait(empty + s % kStages * 8, s / kStages & 1);
  }
}

//% endif
// One thread copies. First what needs neither the launches before nor other blocks.
__device__ __forceinline__ void copy_early(tune::u32 work, tune::u32 full, const Boxes& boxes,
                                           const Task& task, tune::u64 policy) {
  tune::tensor_prefetch_map(boxes.weights);
  tune::tensor_prefetch_map(boxes.tokens);
  for (int s = 0; s < min(kStages, task.stages); ++s) {
    tune::mbarrier_arrive_expect_tx(full + s * 8, kStageBytes);
    if constexpr (kEarlyLoads) copy_weights(work, full, boxes, task, s, policy);
  }
}

// The rest, a stage at a time, once the warpgroups of all blocks that share x have read what was there.
__device__ __forceinline__ void copy_rest(tune::u32 work, tune::u32 full, tune::u32 empty, const Boxes& boxes,
                                          const Task& task, tune::u64 policy) {
//% if ahead
  const int early = min(kTokenStages, task.stages);
  wait_for_inputs();
  if constexpr (!kEarlyLoads) {
    for (int s = 0; s < min(kStages, task.stages); ++s) copy_weights(work, full, boxes, task, s, policy);
  }
  for (int s = 0; s < early; ++s) copy_tokens(work, full, boxes, task, s);
  for (int s = early; s < task.stages; ++s) {
    // What has been read leaves a place for tokens, and the one for the weights that are as far ahead.
    const int read = s - kTokenStages;
    const int next = s + kStages - kTokenStages;
    tune::mbarrier_wait(empty + read % kStages * 8, read / kStages & 1);
    if (next < task.stages) {
      tune::mbarrier_arrive_expect_tx(full + next % kStages * 8, kStageBytes);
      copy_weights(work, full, boxes, task, next, policy);
    }
    copy_tokens(work, full, boxes, task, s);
  }
//% else
  const int early = min(kStages, task.stages);
  wait_for_inputs();
  for (int s = 0; s < early; ++s) {
    if constexpr (!kEarlyLoads) copy_weights(work, full, boxes, task, s, policy);
    copy_tokens(work, full, boxes, task, s);
  }
  for (int s = early; s < task.stages; ++s) {
    tune::mbarrier_wait(empty + s % kStages * 8, (s / kStages & 1) ^ 1);
    tune::mbarrier_arrive_expect_tx(full + s % kStages * 8, kStageBytes);
    copy_weights(work, full, boxes, task, s, policy);
    copy_tokens(work, full, boxes, task, s);
  }
//% endif
}

//% if scales != "none"
// Multiplies a stage; warpgroups that share K take turns along its boxes. Of sums of e4m3 the tensor
// cores keep about 14 bits, so those of a box, 128 of K, are added up in float32.
__device__ __forceinline__ void multiply(float (&sums)[kRowTiles][@{ wide }@ / 2], tune::u32 stage@{ ", tune::u32 token_stage" if ahead else "" }@, int row,
                                         int k_group, const float* scales) {
#pragma unroll
  for (int turn = 0; turn < kBoxes / kWarpsK; ++turn) {
    const int box = turn * kWarpsK + k_group;
    const tune::u32 weights = stage + box * kWeightBytes@{ "" if token_rows else " + row * 128" }@;
    const tune::u32 tokens = @{ "token_stage" if ahead else "stage + kBoxes * kWeightBytes" }@ + box * kTokenBytes@{ " + row * 128" if token_rows else "" }@;
    float fresh[kRowTiles][@{ wide }@ / 2];
    tune::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBoxDepth; k += 16) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        tune::wgmma<@{ operand }@>(fresh[r], tune::matrix_descriptor<128>(@{ high_at }@ + r * 64 * 128 + k * 2),
                                tune::matrix_descriptor<128>(@{ wide_at }@ + k * 2), k > 0);
      }
    }
    tune::wgmma_commit();
    tune::wgmma_wait<0>();
//% if scales == "block" and token_rows
    const float* first = scales + box * kTokens + row + threadIdx.x / kWarp % kGroupWarps * 16 + threadIdx.x % kWarp / 4;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const float2 scale = {first[r * 64], first[r * 64 + 8]};
#pragma unroll
      for (int i = 0; i < kTileN / 2; ++i) {
        sums[r][i] = fmaf(fresh[r][i], i / 2 % 2 == 0 ? scale.x : scale.y, sums[r][i]);
      }
    }
//% else
#pragma unroll
    for (int i = 0; i < @{ wide }@ / 2; i += 4) {
//% if scales == "block"
      const float2 scale = scales_of(scales + box * kTokens, i / 4);
//% endif
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int j = i; j < i + 4; ++j) {
//% if scales == "block"
          sums[r][j] = fmaf(fresh[r][j], j % 2 == 0 ? scale.x : scale.y, sums[r][j]);
//% else
          sums[r][j] += fresh[r][j];
//% endif
        }
      }
    }
//% endif
  }
}

//% else
// Begins to multiply a stage; warpgroups that share K take turns along its boxes.
__device__ __forceinline__ void multiply(float (&sums)[kRowTiles][@{ wide }@ / 2], tune::u32 stage@{ ", tune::u32 token_stage" if ahead else "" }@, int row,
                                         int k_group, bool add) {
#pragma unroll
  for (int turn = 0; turn < kBoxes / kWarpsK; ++turn) {
    const int box = turn * kWarpsK + k_group;
    const tune::u32 weights = stage + box * kWeightBytes@{ "" if token_rows else " + row * 128" }@;
    const tune::u32 tokens = @{ "token_stage" if ahead else "stage + kBoxes * kWeightBytes" }@ + box * kTokenBytes@{ " + row * 128" if token_rows else "" }@;
#pragma unroll
    for (int k = 0; k < kBoxDepth; k += 16) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        tune::wgmma<@{ operand }@>(sums[r], tune::matrix_descriptor<128>(@{ high_at }@ + r * 64 * 128 + k * 2),
                                tune::matrix_descriptor<128>(@{ wide_at }@ + k * 2), add || turn > 0 || k > 0);
      }
    }
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
  const int group = warp / kGroupWarps;
  const int k_group = group % kWarpsK;
  const int row = group / kWarpsK * (@{ high }@ / kGroupsN);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      tune::mbarrier_init(full + s * 8, 1);
      tune::mbarrier_init(empty + s * 8, kShare * kWarps);
    }
    tune::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (kShare > 1) tune::cluster_arrive_relaxed();
//% if scales != "none"
  float sums[kRowTiles][@{ wide }@ / 2] = {};
//% else
  float sums[kRowTiles][@{ wide }@ / 2];
//% endif
  if (warp == kWarps) {
    const tune::u64 policy = kStreaming ? tune::l2_evict_first() : 0;
    if (lane == 0) copy_early(work, full, boxes, task, policy);
    meet_sharers();
    if (lane == 0) copy_rest(work, full, empty, boxes, task, policy);
    __syncwarp();
    wait_for_inputs();  // of all lanes, which store results too
  } else {
    meet_sharers();
//% if scales != "none"
    wait_for_inputs();
    stage_scales(task);
    tune::named_barrier_sync(1, kWarps * kWarp);
    for (int s = 0; s < task.stages; ++s) {
      tune::mbarrier_wait(full + s % kStages * 8, s / kStages & 1);
      multiply(sums, stage_at(work, s)@{ ", tokens_at(work, s)" if ahead else "" }@, row, k_group, task.scales + s * kBoxes * kTokens);
      leave(empty, s, lane);
    }
  }
//% else
    for (int s = 0; s < task.stages; ++s) {
      tune::mbarrier_wait(full + s % kStages * 8, s / kStages & 1);
      tune::wgmma_fence();
      multiply(sums, stage_at(work, s)@{ ", tokens_at(work, s)" if ahead else "" }@, row, k_group, s > 0);
      tune::wgmma_commit();
      tune::wgmma_wait<1>();  // the stage before has been read
      if (s > 0) leave(empty, s - 1, lane);
    }
    tune::wgmma_wait<0>();
    if constexpr (kShare > 1) leave(empty, task.stages - 1, lane);
    wait_for_inputs();  // the results are written to memory that others may still use
  }
//% endif
  __syncthreads();
  if (warp == kWarps) return;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < @{ wide }@ / 2; ++i) {
      const int @{ "to" if token_rows else "token" }@ = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int @{ "token" if token_rows else "to" }@ = row + r * 64 + warp % kGroupWarps * 16 + lane / 4 + i / 2 % 2 * 8;
      if (token < task.tokens) part(parts, k_group, token, to) = sums[r][i];
    }
  }
}
