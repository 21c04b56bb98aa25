/*# The products whose rows depend on no batch, but for what stands before them in a source: includes of
    tune/wgmma.h, bfloat16.cuh and lanes.cuh. Who includes it sets `scales` (none, token, block), `element` and
    `operand` (of x and w: the pointers', and the multiplies'), `bytes` of one, and `kernel`, a name. #*/
constexpr int kColumns = @{ N }@;
constexpr int kDepth = @{ K }@;
constexpr int kTileN = @{ tile_n }@;  // columns of y, of a block
constexpr int kTileT = @{ tile_t }@;  // tokens
constexpr int kTileK = @{ tile_k }@;  // of K, in a stage
constexpr int kStages = @{ stages }@;
constexpr int kGroups = @{ groups }@;  // warpgroups, side by side over the columns
constexpr int kParts = @{ parts }@;
constexpr int kShare = @{ share }@;    // blocks, of neighbouring columns, that share x: each copies a part for all
constexpr int kBand = @{ band }@;      // tiles of columns that are walked together, for all tokens
constexpr bool kInBlock = @{ sum_by == "block" }@;      // who adds up the parts
constexpr bool kInCluster = @{ sum_by == "cluster" }@;
constexpr bool kEarly = @{ early }@;   // weights before the wait
constexpr bool kStreaming = @{ streaming }@;  // they leave the L2 first
constexpr bool kProgrammatic = @{ pdl }@;

constexpr int kGroupThreads = 128;
constexpr int kConsumers = kGroups * kGroupThreads;  // then come those that copy
constexpr bool kUneven = kGroups == 2 && @{ resident }@ == 1;  // these give registers away, as a warpgroup has to
constexpr int kThreads = kConsumers + (kUneven ? kGroupThreads : kWarp);
constexpr int kRowTiles = kTileN / (64 * kGroups);   // of 64 columns, of a warpgroup
constexpr int kEights = kTileT / 8;                  // of tokens
constexpr int kPieces = kRowTiles * kEights;         // of four numbers, of a thread
constexpr int kBox = @{ "64; " if bytes == 2 else "128;" }@                            // of K, in rows of 128 bytes
constexpr int kBoxes = kTileK / kBox;
constexpr int kWeightBytes = kTileN * kBox * @{ bytes }@;      // of a box
constexpr int kTokenBytes = kTileT * kBox * @{ bytes }@;
constexpr int kStageBytes = kBoxes * (kWeightBytes + kTokenBytes);
constexpr int kPartStages = (kDepth + kTileK - 1) / kTileK / kParts;
constexpr int kItemStages = kPartStages * (kInBlock ? kParts : 1);
constexpr int kColumnTiles = (kColumns + kTileN * kShare - 1) / (kTileN * kShare);  // of a cluster
constexpr int kItemParts = kInBlock ? 1 : kParts;    // items that make a tile
// Tokens that are put into the order of y together, and the bf16 numbers from one to the next: in other banks.
constexpr int kRound = kTileT < 32 ? kTileT : 32;
constexpr int kPitch = 64 + 8;
constexpr int kOrderedAt = kStages * kStageBytes;
constexpr int kOwnPieces = (kPieces + kParts - 1) / kParts;  // of those that a cluster adds up, of one block
constexpr int kReceivedAt = kOrderedAt + kGroups * kRound * kPitch * 2;
//% if scales != "none"
constexpr int kScalesAt = kReceivedAt + (kInCluster ? kParts * kOwnPieces * kConsumers * 16 : 0);
//% endif
//% if scales == "block"
constexpr int kBlocks = kDepth / kBox;  // of K under a scale
constexpr int kScaleBytes = kBoxes * kTileT * 4;     // of tokens, of a stage
constexpr int kScalePitch = (kScaleBytes + 127) / 128 * 128;
static_assert(kDepth % kBox == 0);
//% endif
static_assert(kTileN % (64 * kGroups) == 0 && kTileT % (8 * kShare) == 0 && kTileK % kBox == 0);
static_assert(kColumns % 8 == 0 && kDepth % @{ 16 // bytes }@ == 0 && (kDepth + kBox - 1) / kBox % (kParts * kBoxes) == 0);
static_assert(!kInCluster || kShare == 1);

// What a block does at a time: a tile of y, or a part of K for it.
struct Item {
  int column;
  int token;
  int part;
  int tile;
};

// Parts of a tile are neighbours, then tiles of the columns of a band, then those of tokens.
__device__ __forceinline__ Item item_at(int index, int tokens, int rank) {
  const int token_tiles = (tokens + kTileT - 1) / kTileT;
  const int tile = index / kItemParts;
  const int band = tile / (kBand * token_tiles) * kBand;
  const int width = min(kBand, kColumnTiles - band);
  const int within = tile - band * token_tiles;
  return {((band + within % width) * kShare + rank) * kTileN, within / width * kTileT, index % kItemParts,
          tile * kShare + rank};
}

// A place among the stages, and the parity of its barriers' phases.
struct Place {
  int stage = 0;
  tune::u32 parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

struct Memory {
  tune::u32 stages;
  tune::u32 full;   // barriers: what comes into a place is counted
  tune::u32 empty;  // who has read it
//% if scales == "block"
  tune::u32 scales;
//% endif
};

__device__ __forceinline__ void copy_weights(const Memory& memory, const tune::TensorMap& map, int place,
                                             const Item& item, int stage, tune::u64 policy) {
  for (int box = 0; box < kBoxes; ++box) {
    const tune::u32 to = memory.stages + place * kStageBytes + box * kWeightBytes;
    const int k = (item.part * kPartStages + stage) * kTileK + box * kBox;
    if constexpr (kStreaming) {
      tune::tensor_load_2d(to, map, k, item.column, memory.full + place * 8, policy);
    } else {
      tune::tensor_load_2d(to, map, k, item.column, memory.full + place * 8);
    }
  }
}

__device__ __forceinline__ void copy_tokens(const Memory& memory, const tune::TensorMap& map, int place,
                                            const Item& item, int stage, int rank@{ ", const tune::TensorMap& scales" if scales == "block" else "" }@) {
  for (int box = 0; box < kBoxes; ++box) {
    const int row = kTileT / kShare * rank;
    const tune::u32 to =
        memory.stages + place * kStageBytes + kBoxes * kWeightBytes + box * kTokenBytes + row * kBox * @{ bytes }@;
    const int k = (item.part * kPartStages + stage) * kTileK + box * kBox;
    if constexpr (kShare > 1) {
      tune::tensor_multicast_2d(to, map, k, item.token + row, memory.full + place * 8, (1u << kShare) - 1);
    } else {
      tune::tensor_load_2d(to, map, k, item.token, memory.full + place * 8);
    }
  }
//% if scales == "block"
  const int k = (item.part * kPartStages + stage) * kBoxes;
  tune::tensor_load_2d(memory.scales + place * kScalePitch, scales, item.token, k, memory.full + place * 8);
//% endif
}

// One thread copies all that its block multiplies. What is past the end of w or x comes as zeros.
__device__ __forceinline__ void copy(const Memory& memory, const tune::TensorMap& wmap, const tune::TensorMap& xmap,
                                     int first, int items, int step, int tokens, int rank@{ ", const tune::TensorMap& smap" if scales == "block" else "" }@) {
  tune::tensor_prefetch_map(wmap);
  tune::tensor_prefetch_map(xmap);
  const tune::u64 policy = kStreaming ? tune::l2_evict_first() : 0;
  int asked = kEarly ? min(kStages, kItemStages) : 0;  // stages of the first item whose weights are on their way
  for (int s = 0; s < asked; ++s) {
    tune::mbarrier_arrive_expect_tx(memory.full + s * 8, @{ "kStageBytes + kScaleBytes" if scales == "block" else "kStageBytes" }@);
    copy_weights(memory, wmap, s, item_at(first, tokens, rank), s, policy);
  }
  if constexpr (kProgrammatic) tune::griddepcontrol_wait();
  Place place;
  for (int index = first; index < items; index += step, asked = 0) {
    const Item item = item_at(index, tokens, rank);
    for (int s = 0; s < kItemStages; ++s, place.advance()) {
      if (s >= asked) {
        tune::mbarrier_wait(memory.empty + place.stage * 8, place.parity ^ 1);
        tune::mbarrier_arrive_expect_tx(memory.full + place.stage * 8, @{ "kStageBytes + kScaleBytes" if scales == "block" else "kStageBytes" }@);
        copy_weights(memory, wmap, place.stage, item, s, policy);
      }
      copy_tokens(memory, xmap, place.stage, item, s, rank@{ ", smap" if scales == "block" else "" }@);
    }
  }
  // Others send here and hear from here: all of them have read what was copied before this block may end.
  if constexpr (kShare > 1) {
    for (int s = 0; s < kStages; ++s, place.advance()) {
      tune::mbarrier_wait(memory.empty + place.stage * 8, place.parity ^ 1);
    }
  }
}

// A warp has read a place.
__device__ __forceinline__ void leave(const Memory& memory, int stage, int lane) {
  const tune::u32 barrier = memory.empty + stage * 8;
  if constexpr (kShare > 1) {
    if (lane < kShare) tune::cluster_mbarrier_arrive(tune::map_shared(barrier, lane));
  } else {
    if (lane == 0) tune::mbarrier_arrive(barrier);
  }
}

// The numbers of a thread: of each 64 columns, by eights of tokens, four that are two tokens of two columns.
using Sums = float[kRowTiles][kTileT / 2];

//% if scales == "none"
// Begins to multiply a stage.
__device__ __forceinline__ void multiply(Sums& sums, tune::u32 stage, int group, bool add) {
#pragma unroll
  for (int k = 0; k < kTileK; k += 16) {
    const tune::u32 weights = stage + k / kBox * kWeightBytes + group * kRowTiles * 64 * kBox * 2 + k % kBox * 2;
    const tune::u32 tokens = stage + kBoxes * kWeightBytes + k / kBox * kTokenBytes + k % kBox * 2;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      tune::wgmma<@{ operand }@>(sums[r], tune::matrix_descriptor<128>(weights + r * 64 * kBox * 2),
                              tune::matrix_descriptor<128>(tokens), add || k > 0);
    }
  }
}

// The sums of one part.
__device__ __forceinline__ void add_products(Sums& sums, const Memory& memory, Place& place, int group, int lane) {
  int before = 0;
  for (int s = 0; s < kPartStages; ++s) {
    tune::mbarrier_wait(memory.full + place.stage * 8, place.parity);
    tune::wgmma_fence();
    multiply(sums, memory.stages + place.stage * kStageBytes, group, s > 0);
    tune::wgmma_commit();
    tune::wgmma_wait<1>();  // the stage before has been read
    if (s > 0) leave(memory, before, lane);
    before = place.stage;
    place.advance();
  }
  tune::wgmma_wait<0>();
  leave(memory, before, lane);
}

//% else
//% include "gemm_promoted.cuh"
//% endif
__device__ __forceinline__ float4 piece(const Sums& sums, int which) {
  const float* four = &sums[which / kEights][which % kEights * 4];
  return {four[0], four[1], four[2], four[3]};
}

__device__ __forceinline__ void set(Sums& sums, int which, const float4& values) {
  float* four = &sums[which / kEights][which % kEights * 4];
  four[0] = values.x, four[1] = values.y, four[2] = values.z, four[3] = values.w;
}

__device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Eight tokens of 16 columns into rows of tokens: two matrices, transposed.
__device__ __forceinline__ void order(tune::u32 row, const float4& values) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row),
               "r"(rounded(values.x, values.y)), "r"(rounded(values.z, values.w))
               : "memory");
}

// Stores the pieces that this block adds up, 64 columns of a token at a time.
__device__ __forceinline__ void store(__nv_bfloat16* y, Sums& sums, unsigned char* ordered, const Item& item,
                                      int tokens, int group@{ ", const float* scales" if scales == "token" else "" }@) {
  const int thread = threadIdx.x % kGroupThreads;
  const int lane = threadIdx.x % kWarp;
  __nv_bfloat16* rows = reinterpret_cast<__nv_bfloat16*>(ordered) + group * kRound * kPitch;
  const tune::u32 row =
      tune::shared_address(rows + lane % 8 * kPitch + thread / kWarp * 16 + lane / 8 % 2 * 8);
  const auto is_own = [&](int which) { return !kInCluster || which % kParts == item.part; };
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int column = item.column + (group * kRowTiles + r) * 64 + thread % 8 * 8;
#pragma unroll
    for (int first = 0; first < kTileT; first += kRound) {
      if (first > 0 && item.token + first >= tokens) break;
      tune::named_barrier_sync(1 + group, kGroupThreads);  // those before have been stored
#pragma unroll
      for (int t = 0; t < kRound && first + t < kTileT; t += 8) {
//% if scales == "token"
        order(row + t * kPitch * 2, scaled(piece(sums, r * kEights + (first + t) / 8), scales, first + t, r));
//% else
        order(row + t * kPitch * 2, piece(sums, r * kEights + (first + t) / 8));
//% endif
      }
      tune::named_barrier_sync(1 + group, kGroupThreads);
#pragma unroll
      for (int t = thread / 8; t < kRound; t += kGroupThreads / 8) {
        const int token = item.token + first + t;
        if (first + t < kTileT && token < tokens && column < kColumns && is_own(r * kEights + (first + t) / 8)) {
          *reinterpret_cast<uint4*>(y + static_cast<size_t>(token) * kColumns + column) =
              *reinterpret_cast<const uint4*>(rows + t * kPitch + thread % 8 * 8);
        }
      }
    }
  }
}

//% if sum_by == "cluster"
// Every block gets some pieces of all parts.
__device__ __forceinline__ void add_in_cluster(Sums& sums, unsigned char* received, tune::u32 barrier, int part) {
  const tune::u32 to = tune::shared_address(received) + threadIdx.x * 16;
#pragma unroll
  for (int which = 0; which < kPieces; ++which) {
    const int at = (part * kOwnPieces + which / kParts) * kConsumers * 16;
    tune::cluster_store_async(tune::map_shared(to + at, which % kParts), piece(sums, which),
                              tune::map_shared(barrier, which % kParts));
  }
  tune::mbarrier_wait(barrier, 0);
#pragma unroll
  for (int which = 0; which < kPieces; ++which) {
    if (which % kParts != part) continue;
    const float4* all = reinterpret_cast<const float4*>(received) + which / kParts * kConsumers + threadIdx.x;
    float4 sum = *all;
#pragma unroll
    for (int from = 1; from < kParts; ++from) sum = sum + all[from * kOwnPieces * kConsumers];
    set(sums, which, sum);
  }
}

//% elif sum_by == "last"
// Every block leaves its part in global memory; whether this is the last of them, which adds up all.
__device__ __forceinline__ bool add_as_last(Sums& sums, float* partial, tune::u32* done, const Item& item, int eights) {
  __shared__ bool last;
  float4* all = reinterpret_cast<float4*>(partial) + static_cast<size_t>(item.tile) * kParts * kPieces * kConsumers;
  all += threadIdx.x;
#pragma unroll
  for (int which = 0; which < kPieces; ++which) {
    if (which % kEights < eights) all[(item.part * kPieces + which) * kConsumers] = piece(sums, which);
  }
  tune::named_barrier_sync(1 + kGroups, kConsumers);
  if (threadIdx.x == 0) {
    last = tune::atomic_add_acq_rel(done + item.tile, 1) == kParts - 1;
    if (last) done[item.tile] = 0;
  }
  tune::named_barrier_sync(1 + kGroups, kConsumers);
  if (!last) return false;
#pragma unroll
  for (int which = 0; which < kPieces; ++which) {
    if (which % kEights >= eights) continue;
    float4 sum = all[which * kConsumers];
#pragma unroll
    for (int from = 1; from < kParts; ++from) sum = sum + all[(from * kPieces + which) * kConsumers];
    set(sums, which, sum);
  }
  return true;
}

//% endif
extern "C" __global__ void __launch_bounds__(kThreads, @{ resident }@)
//% if scales == "none"
    @{ kernel }@(__nv_bfloat16* y, const @{ element }@* x, const @{ element }@* w, float* partial, tune::u32* done,
//% else
    @{ kernel }@(__nv_bfloat16* y, const @{ element }@* x, const @{ element }@* w, const float* x_scale,
                       const float* w_scale, float* partial, tune::u32* done,
//% endif
                   int T, int N, int K, const __grid_constant__ tune::TensorMap wmap,
                   const __grid_constant__ tune::TensorMap xmap@{ ", const __grid_constant__ tune::TensorMap smap" if scales == "block" else "" }@) {
  extern __shared__ __align__(1024) unsigned char work[];
  __shared__ tune::u64 barriers[2 * kStages + 1];
  const tune::u32 full = tune::shared_address(barriers);
  const Memory memory = {tune::shared_address(work), full, full + 8 * kStages@{ ", tune::shared_address(work + kScalesAt)" if scales == "block" else "" }@};
  const tune::u32 arrived = full + 16 * kStages;  // what others of the cluster send
  const int lane = threadIdx.x % kWarp;
  const int rank = blockIdx.x % kShare;
  const int first = blockIdx.x / kShare;
  const int step = gridDim.x / kShare;
  const int items = kColumnTiles * ((T + kTileT - 1) / kTileT) * kItemParts;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      tune::mbarrier_init(memory.full + s * 8, 1);
      tune::mbarrier_init(memory.empty + s * 8, kShare * kConsumers / kWarp);
    }
    tune::mbarrier_init(arrived, 1);
    tune::fence_mbarrier_init();
    if constexpr (kInCluster) {
      const int own = (kPieces - static_cast<int>(blockIdx.x % kParts) + kParts - 1) / kParts;
      tune::mbarrier_arrive_expect_tx(arrived, own * kParts * kConsumers * 16);
    }
  }
  __syncthreads();
  if constexpr (@{ pdl_trigger == "early" }@) tune::griddepcontrol_launch_dependents();
  // The cluster's barriers are there before anything is sent to them.
  if constexpr (kShare > 1 || kInCluster) tune::cluster_arrive_relaxed();
  if constexpr (kShare > 1) tune::cluster_wait();
  if (threadIdx.x >= kConsumers) {
    if constexpr (kUneven) tune::setmaxnreg_dec<40>();
    if (threadIdx.x == kConsumers) copy(memory, wmap, xmap, first, items, step, T, rank@{ ", smap" if scales == "block" else "" }@);
    __syncwarp();
    if constexpr (kInCluster) tune::cluster_wait();
    return;
  }
  if constexpr (kUneven) tune::setmaxnreg_inc<232>();
  if constexpr (kProgrammatic) tune::griddepcontrol_wait();  // y and partial may still be in use
  if constexpr (kInCluster) tune::cluster_wait();
  const int group = threadIdx.x / kGroupThreads;
  Place place;
//% if scales == "token"
  float* scales = reinterpret_cast<float*>(work + kScalesAt) + group * (kTileT + kRowTiles * 64);
//% elif scales == "block"
  const unsigned char* scales = work + kScalesAt;
//% endif
  for (int index = first; index < items; index += step) {
    const Item item = item_at(index, T, rank);
//% if scales == "token"
    stage_scales(scales, x_scale, w_scale, item, T, group);
//% endif
//% if sum_by == "block" and parts > 1
    Sums sums = {}, fresh;
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      add_products(fresh, memory, place, group, lane@{ ", scales, w_scale, item.column, part" if scales == "block" else "" }@);
#pragma unroll
      for (int which = 0; which < kPieces; ++which) {
        const float4 values = piece(fresh, which);
        set(sums, which, part == 0 ? values : piece(sums, which) + values);
      }
    }
//% else
    Sums sums;
    add_products(sums, memory, place, group, lane@{ ", scales, w_scale, item.column, item.part" if scales == "block" else "" }@);
//% endif
//% if scales == "token"
    tune::cp_async_wait<0>();
//% endif
//% if sum_by == "cluster"
    add_in_cluster(sums, work + kReceivedAt, arrived, item.part);
//% elif sum_by == "last"
    if (!add_as_last(sums, partial, done, item, min(kEights, (T - item.token + 7) / 8))) continue;
//% endif
    store(y, sums, work + kOrderedAt, item, T, group@{ ", scales" if scales == "token" else "" }@);
  }
}
