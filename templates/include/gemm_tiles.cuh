/*# Tiles of the products whose rows depend on no batch, and how x and w come to them; the other half is
    gemm_tile_kernel.cuh, and between the two stands add_products. Who includes them has included tune/wgmma.h,
    bfloat16.cuh and lanes.cuh, and sets `scales` (none, token, block), `element` (what x and w point to), its
    `bytes`, and `kernel`, a name. #*/
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

