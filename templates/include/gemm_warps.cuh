// Products by single warps, of boxes in shared memory: tiles of any 16 columns. The warps that share a stage's K
// have neighbouring parts of it.
constexpr int kRowTiles = kTileN / kWarpsN / 16;
constexpr int kTokenTiles = kTokens / 8;
constexpr int kSteps = kTileK / 16 / kWarpsK;   // of 16 of K, of a warp in a stage
constexpr int kBoxSteps = kBoxDepth / 16;
// How many are loaded before the first is multiplied: as many as 64 registers hold.
constexpr int kStepRegisters = 4 * kRowTiles + 2 * kTokenTiles;
constexpr int kTogether = kSteps >= 4 && kStepRegisters <= 16 ? 4 : kSteps >= 2 && kStepRegisters <= 32 ? 2 : 1;
// Sums that wait for each other are two where there are few.
constexpr int kChains = kTogether > 1 && kRowTiles * kTokenTiles <= 2 ? 2 : 1;
static_assert(kTileN % (16 * kWarpsN) == 0 && (kTokenTiles == 1 || kTokenTiles % 2 == 0));
static_assert(kTileK % (16 * kWarpsK) == 0 && (kSteps % kBoxSteps == 0 || kBoxSteps % kSteps == 0));
static_assert(kBoxes % kShare == 0 && kWeightBytes % 1024 == 0 && kSteps % kTogether == 0);

struct Sums {
  float values[kRowTiles][kTokenTiles][4];
};

// Where a lane's words of a stage are: of its row in the first tile, and the first step of its warp. Of a row's
// eight words a swizzle of 128 puts word i where i ^ row % 8 would be, so that a step changes bits.
struct Stage {
  tune::u32 weight;
  tune::u32 token;

  __device__ __forceinline__ tune::u32 weights(int tile, int step) const {
    return (weight ^ step % kBoxSteps * 32) + step / kBoxSteps * kWeightBytes + tile * 16 * 128;
  }

  __device__ __forceinline__ tune::u32 tokens(int tile, int step) const {
    return (token ^ step % kBoxSteps * 32) + step / kBoxSteps * kTokenBytes + tile * 8 * 128;
  }
};

__device__ __forceinline__ int in_box(int row, int k) { return row * 128 + (k / 8 ^ row % 8) * 16; }

// The first stage, at a warp's row and its part of K. Of tokens a load has two tiles where there are two.
__device__ __forceinline__ Stage first_stage(tune::u32 work, int row, int k_warp, int lane) {
  const int box = k_warp * kSteps / kBoxSteps;
  const int k = k_warp * kSteps % kBoxSteps * 16;
  const int token = (kTokenTiles == 1 ? 0 : lane / 16 * 8) + lane % 8;
  return {work + box * kWeightBytes + in_box(row + lane % 16, k + lane / 16 * 8),
          work + kBoxes * kWeightBytes + box * kTokenBytes + in_box(token, k + lane / 8 % 2 * 8)};
}

// What a lane has of some steps.
struct Operands {
  unsigned weights[kTogether][kRowTiles][4];
  unsigned tokens[kTogether][(kTokenTiles + 1) / 2][4];
};

__device__ __forceinline__ void load(Operands& operands, const Stage& stage, int first) {
#pragma unroll
  for (int step = 0; step < kTogether; ++step) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) {
      unsigned (&both)[4] = operands.tokens[step][t / 2];
      const tune::u32 from = stage.tokens(t, first + step);
      if constexpr (kTokenTiles == 1) {
        unsigned one[2];
        tune::ldmatrix(one, from);
        both[0] = one[0];
        both[1] = one[1];
      } else {
        tune::ldmatrix(both, from);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) tune::ldmatrix(operands.weights[step][r], stage.weights(r, first + step));
  }
}

__device__ __forceinline__ void multiply(Sums (&sums)[kChains], const Operands& operands) {
#pragma unroll
  for (int step = 0; step < kTogether; ++step) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const unsigned* both = operands.tokens[step][t / 2] + t % 2 * 2;
        tune::mma<@{ operand }@>(sums[step % kChains].values[r][t], operands.weights[step][r], {both[0], both[1]});
      }
    }
  }
}

__device__ __forceinline__ void add(Sums& sums, const Sums& others) {
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.values[r][t][i] += others.values[r][t][i];
    }
  }
}

// An address in a ring of places. It is a variable: what a compiler can compute it computes in every stage.
template <int kPlaces, int kBytes>
struct Ring {
  tune::u32 at;
  int place;

  // Says whether that was a round.
  __device__ __forceinline__ bool advance() {
    at += kBytes;
    if (++place < kPlaces) return false;
    at -= kPlaces * kBytes;
    place = 0;
    return true;
  }
};

__device__ __forceinline__ void multiply_stages(Sums (&sums)[kChains], tune::u32 full, const Stage& first,
                                                const Task& task, int k_warp, int lane) {
  Ring<kStages, 8> barrier = {full, 0};
  Ring<kStages, kStageBytes> stage = {0, 0};
  tune::u32 parity = 0;
#pragma unroll 1
  for (int s = 0; s < task.stages; ++s) {
    tune::mbarrier_wait(barrier.at, parity);
#pragma unroll
    for (int step = 0; step < kSteps; step += kTogether) {
      Operands operands;
      load(operands, {first.weight + stage.at, first.token + stage.at}, step);
      if (step + kTogether == kSteps) {
        __syncwarp();
        leave(barrier.at + 8 * kStages, 0, lane);
      }
      multiply(sums, operands);
    }
    stage.advance();
    parity ^= barrier.advance();
  }
  if constexpr (kChains > 1) add(sums[0], sums[kChains - 1]);
}

__device__ __forceinline__ void add_products(unsigned char* memory, float* parts, const Task& task,
                                             const Boxes& boxes) {
  const tune::u32 work = tune::shared_address(memory);
  const tune::u32 full = stage_barriers();
  const tune::u32 empty = full + 8 * kStages;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int row = warp / kWarpsK * (kTileN / kWarpsN);
  if (threadIdx.x == kWarps * kWarp) {
    tune::tensor_prefetch_map(boxes.weights);
    tune::tensor_prefetch_map(boxes.tokens);
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      tune::mbarrier_init(full + s * 8, 1);
      tune::mbarrier_init(empty + s * 8, kShare * kWarps);
    }
    tune::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (kShare > 1) tune::cluster_arrive_relaxed();
  Sums sums[kChains] = {};
  if (warp == kWarps) {
    const tune::u64 policy = kStreaming ? tune::l2_evict_first() : 0;
    if (lane == 0) copy_early(work, full, boxes, task, policy);
    meet_sharers();
    if (lane == 0) copy_rest(work, full, empty, boxes, task, policy);
    __syncwarp();
    wait_for_inputs();  // of all lanes, which store results too
  } else {
    meet_sharers();
    multiply_stages(sums, full, first_stage(work, row, warp % kWarpsK, lane), task, warp % kWarpsK, lane);
    wait_for_inputs();  // the results are written to memory that others may still use
  }
  __syncthreads();
  if (warp == kWarps) return;
  keep_tiles(parts, sums[0].values, row, warp % kWarpsK, lane, task.tokens);
}
