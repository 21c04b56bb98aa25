// Products on Hopper's tensor cores by warpgroups, of boxes in shared memory; the weights are the 64-row
// operand, or tokens are (`token_rows`), for tiles of any 8 columns.
//% if scales != "none"
// Multiplies a stage; warpgroups that share K take turns along its boxes. Of sums of e4m3 the tensor
// cores keep about 14 bits, so those of a box, 128 of K, are added up in float32.
__device__ __forceinline__ void multiply(float (&sums)[kRowTiles][@{ wide }@ / 2], tune::u32 stage, int row,
                                         int k_group, const float* scales) {
#pragma unroll
  for (int turn = 0; turn < kBoxes / kWarpsK; ++turn) {
    const int box = turn * kWarpsK + k_group;
    const tune::u32 weights = stage + box * kWeightBytes@{ "" if token_rows else " + row * 128" }@;
    const tune::u32 tokens = stage + kBoxes * kWeightBytes + box * kTokenBytes@{ " + row * 128" if token_rows else "" }@;
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
__device__ __forceinline__ void multiply(float (&sums)[kRowTiles][@{ wide }@ / 2], tune::u32 stage, int row,
                                         int k_group, bool add) {
#pragma unroll
  for (int turn = 0; turn < kBoxes / kWarpsK; ++turn) {
    const int box = turn * kWarpsK + k_group;
    const tune::u32 weights = stage + box * kWeightBytes@{ "" if token_rows else " + row * 128" }@;
    const tune::u32 tokens = stage + kBoxes * kWeightBytes + box * kTokenBytes@{ " + row * 128" if token_rows else "" }@;
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
      multiply(sums, stage_at(work, s), row, k_group, task.scales + s * kBoxes * kTokens);
      leave(empty, s, lane);
    }
  }
//% else
    for (int s = 0; s < task.stages; ++s) {
      tune::mbarrier_wait(full + s % kStages * 8, s / kStages & 1);
      tune::wgmma_fence();
      multiply(sums, stage_at(work, s), row, k_group, s > 0);
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
