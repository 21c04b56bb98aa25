// What tensor maps say is copied by a warp of its own: boxes of 64 of K, of weights and of tokens, into kStages
// places in shared memory. Of blocks that share x each copies some rows of every box of tokens to all, or some boxes.
// (More places for weights than for tokens, filled before the wait, were slower on an H200.)
// A recording knows code by its lines: where path is not boxes they stay as they were measured.
//% if path != "boxes"
#include <tune/wgmma.h>

//% endif
constexpr int kBoxDepth = 64;  // elements of K: rows of 128 bytes, which are swizzled
constexpr int kBoxes = kTileK / kBoxDepth;
constexpr int kWeightBytes = kTileN * kBoxDepth * 2;  // of a box
constexpr int kTokenBytes = kTokens * kBoxDepth * 2;
constexpr int kOwnTokens = kTokens / kShare;  // rows of a box that this block copies
constexpr int kStageBytes = kBoxes * (kWeightBytes + kTokenBytes);
constexpr int kWorkBytes = kStages * kStageBytes;
//% if path != "boxes"
constexpr int kGroupWarps = 4;
constexpr int kGroupsN = kWarpsN / kGroupWarps;  // warpgroups side by side over the columns
constexpr int kRowTiles = @{ high }@ / kGroupsN / 64;
static_assert(kWarpsN % kGroupWarps == 0 && @{ high }@ % (64 * kGroupsN) == 0 && kOwnTokens % 8 == 0);
static_assert(kTileK % (kBoxDepth * kWarpsK) == 0 && kStages >= 2 && kWeightBytes % 1024 == 0);
//% endif

// Where the boxes of a block's stages come from.
struct Boxes {
  const tune::TensorMap& weights;
  const tune::TensorMap& tokens;
  int k;  // at the first stage
};

__device__ __forceinline__ tune::u32 stage_at(tune::u32 work, int stage) {
  return work + stage % kStages * kStageBytes;
}

__device__ __forceinline__ void copy_weights(tune::u32 work, tune::u32 full, const Boxes& boxes,
                                             const Task& task, int stage, tune::u64 policy) {
  const tune::u32 barrier = full + stage % kStages * 8;
//% if path == "boxes"
  // Those of a stage are one copy: the map has rows of 64 of K.
  const int k = boxes.k / kBoxDepth + stage * kBoxes;
  if constexpr (kStreaming) {
    tune::tensor_load_3d(stage_at(work, stage), boxes.weights, 0, task.column, k, barrier, policy);
  } else {
    tune::tensor_load_3d(stage_at(work, stage), boxes.weights, 0, task.column, k, barrier);
  }
//% else
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
//% endif
}

__device__ __forceinline__ void copy_tokens(tune::u32 work, tune::u32 full, const Boxes& boxes,
                                            const Task& task, int stage) {
//% if path == "boxes" and share == 1
  const tune::u32 barrier = full + stage % kStages * 8;
  const int k = boxes.k / kBoxDepth + stage * kBoxes;
  tune::tensor_load_3d(stage_at(work, stage) + kBoxes * kWeightBytes, boxes.tokens, 0, task.token, k, barrier);
//% else
  for (int box = @{ "share_rank(); box < kBoxes; box += kShare" if path == "boxes" else "0; box < kBoxes; ++box" }@) {
    const int row = @{ "0" if path == "boxes" else "share_rank() * kOwnTokens" }@;
    const tune::u32 to = stage_at(work, stage) + kBoxes * kWeightBytes + box * kTokenBytes + row * 128;
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
//% endif
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
//% if path != "boxes"
  tune::tensor_prefetch_map(boxes.weights);
  tune::tensor_prefetch_map(boxes.tokens);
//% endif
  for (int s = 0; s < min(kStages, task.stages); ++s) {
    tune::mbarrier_arrive_expect_tx(full + s * 8, kStageBytes);
    if constexpr (kEarlyLoads) copy_weights(work, full, boxes, task, s, policy);
  }
}

// The rest, a stage at a time, once the warps of all blocks that share x have read what was there.
__device__ __forceinline__ void copy_rest(tune::u32 work, tune::u32 full, tune::u32 empty, const Boxes& boxes,
                                          const Task& task, tune::u64 policy) {
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
}
