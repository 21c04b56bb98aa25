/*# What GEMMs for few tokens share. Who includes it sets `columns`, the rows of w; `element`, what K is counted
    in, 16 bits; `operand`, the tensor cores' type; `depth` and `stage_depth`, K and the depth of a stage in
    elements; `scales`: none, token (of a token and of a column) or block (of 128 of K); and `epilogue`: none, or
    silu, of columns that come in pairs: the gate and what it is multiplied with. #*/
/*# wgmma multiplies 64 rows of one operand by some of the other: what is high, and what is wide. #*/
//% set token_rows = path == "token_rows"
//% set boxed = token_rows or path in ["wgmma", "boxes"]
//% set high = "kTokens" if token_rows else "kTileN"
//% set wide = "kTileN" if token_rows else "kTokens"
//% set high_at = "tokens" if token_rows else "weights"
//% set wide_at = "weights" if token_rows else "tokens"
constexpr int kColumns = @{ columns }@;
constexpr int kDepth = @{ depth }@;
constexpr bool kDots = @{ path == "dots" }@;
constexpr int kTokens = @{ tokens }@;  // rows of x, of a block
constexpr int kTileN = @{ tile_n }@;
constexpr int kTileK = @{ stage_depth }@;   // of a stage
constexpr int kStages = @{ stages }@;  // on their way
constexpr int kWarpsN = @{ warps_n }@;
constexpr int kWarpsK = @{ warps_k }@;
constexpr int kSplit = @{ split }@;    // blocks that share K
constexpr int kShare = @{ share }@;    // blocks that share x, of neighbouring columns: each loads a part for all
constexpr bool kCluster = @{ split > 1 and reduction == "cluster" }@;
constexpr bool kStagedTokens = @{ token_memory == "shared" }@;
constexpr bool kStreaming = @{ streaming }@;  // weights leave the L2 first
constexpr bool kProgrammatic = @{ pdl }@;
constexpr bool kEarlyTrigger = @{ pdl_trigger == "early" }@;  // the next launch touches nothing early
constexpr bool kEarlyLoads = @{ early == "loads" }@;
constexpr bool kPrefetch = @{ early == "l2" }@;

constexpr int kWarps = kWarpsN * kWarpsK;
constexpr int kThreads = kWarp * (kWarps + @{ 1 if boxed else 0 }@);
constexpr int kAllStages = kDepth / kTileK;
constexpr int kGroup = kTileN % 4 == 0 ? 4 : 1;  // columns that a thread adds up and stores
constexpr int kGroups = kTileN / kGroup;         // of a token, in a block
constexpr int kPartPitch = kTileN + 4;
constexpr int kPartBytes = kWarpsK * kTokens * kPartPitch * 4;
constexpr bool kRest = kColumns % (kTileN * kShare) != 0;  // there are tiles past the last column
constexpr int kOwn = (kTokens * kGroups + kSplit - 1) / kSplit;  // groups that a block adds up
static_assert(kDepth % kTileK == 0 && kAllStages >= kSplit && kColumns % kGroup == 0);
static_assert(!kCluster || kGroup == 4);

// Neighbouring columns of a token.
struct alignas(4 * kGroup) Group {
  float values[kGroup];

  __device__ __forceinline__ Group operator+(const Group& other) const {
    Group sum;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) sum.values[i] = values[i] + other.values[i];
    return sum;
  }
};

//% if scales == "none"
struct bf16 {
  using Number = __nv_bfloat16;
  static __device__ Number number(float value) { return __float2bfloat16(value); }
};

struct fp32 {
  using Number = float;
  static __device__ Number number(float value) { return value; }
};

//% endif
constexpr int kStored = @{ "kGroup / 2" if epilogue == "silu" else "kGroup" }@;  // of a group

struct alignas(sizeof(OUT::Number) * kStored) Stored {
  OUT::Number values[kStored];
};

// What a block has to do: some columns of some rows of out, and stages of K.
struct Task {
  const @{ element }@* x;  // at the first token and stage
  const @{ element }@* w;
  int token;
  int tokens;
  int column;
  int stages;
//% if scales != "none"
  const float* token_scales;   // in global memory: of the first token, and the first 128 of K
  int token_pitch;             // to the next 128 of K
  const float* column_scales;  // of the first column, or of its 128 and the first 128 of K
  float* scales;               // in shared memory
//% endif

  // A row past the last one is the last: what comes of it is not stored.
  __device__ __forceinline__ const @{ element }@* weights(int row) const {
    const int n = kRest ? min(column + row, kColumns - 1) : column + row;
//% if epilogue == "silu"
    return w + static_cast<size_t>(n % 2 * (kColumns / 2) + n / 2) * kDepth;
//% else
    return w + static_cast<size_t>(n) * kDepth;
//% endif
  }
};

// In the grid, blocks that add up in their cluster are next to each other, and then those that share x; where
// none do, those that share x, for they are a cluster as well.
__device__ __forceinline__ int split_rank() { return blockIdx.x / (kCluster ? 1 : kShare) % kSplit; }

__device__ __forceinline__ int share_rank() { return blockIdx.x / (kCluster ? kSplit : 1) % kShare; }

// The rank in the cluster of one that shares x with this block.
__device__ __forceinline__ int sharer(int which) { return kCluster ? which * kSplit + split_rank() : which; }

// The tokens and columns of this block. Tiles of tokens are neighbours: they share weights.
__device__ __forceinline__ void place(Task& task, int tokens) {
  int tile = blockIdx.x / (kSplit * kShare);
  task.token = 0;
  if (tokens > kTokens) {
    const int token_tiles = (tokens + kTokens - 1) / kTokens;
    task.token = tile % token_tiles * kTokens;
    tile /= token_tiles;
  }
  task.tokens = min(kTokens, tokens - task.token);
  task.column = (tile * kShare + share_rank()) * kTileN;
}

__device__ __forceinline__ void wait_for_inputs() {
  if constexpr (kProgrammatic) tune::griddepcontrol_wait();
}

// The sum of one of the warps that share K.
__device__ __forceinline__ float& part(float* parts, int k_warp, int token, int row) {
  return parts[(k_warp * kTokens + token) * kPartPitch + row];
}

// What the tensor cores have left in a warp's registers.
template <int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void keep_tiles(float* parts,
                                           const float (&sums)[kRowTiles][kTokenTiles][4], int row,
                                           int k_warp, int lane, int tokens) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = t * 8 + lane % 4 * 2 + i % 2;
        const int to = row + r * 16 + lane / 4 + i / 2 * 8;
        if (token < tokens) part(parts, k_warp, token, to) = sums[r][t][i];
      }
    }
  }
}

//% if scales != "none"
//% include "gemm_scales.cuh"

//% endif
//% if path in ["registers", "dots"]
//% include "gemm_direct.cuh"
//% elif path == "copies"
//% include "gemm_staged.cuh"
//% else
//% include "gemm_boxes.cuh"

//% if path == "boxes"
//% include "gemm_warps.cuh"
//% else
//% include "gemm_wgmma.cuh"
//% endif
//% endif

constexpr int kPartsAt = kStagedTokens ? kWorkBytes : 0;  // else where the stages were
constexpr int kReceivedAt =
    kPartsAt + kPartBytes > kWorkBytes ? kPartsAt + kPartBytes : kWorkBytes;

// From all warps of this block.
__device__ __forceinline__ Group block_sum(float* parts, int group) {
  const int column = group % kGroups * kGroup;
  Group sum = *reinterpret_cast<Group*>(&part(parts, 0, group / kGroups, column));
#pragma unroll
  for (int k = 1; k < kWarpsK; ++k) {
    sum = sum + *reinterpret_cast<Group*>(&part(parts, k, group / kGroups, column));
  }
  return sum;
}

__device__ __forceinline__ void store(OUT::Number* out, const Task& task, int group,
                                      const Group& sum) {
  const int column = task.column + group % kGroups * kGroup;
  if (kRest && column >= kColumns) return;
  Stored stored;
//% if scales == "token"
  const float scale = task.scales[kTileN + group / kGroups];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float column_scale = task.scales[group % kGroups * kGroup + i];
    stored.values[i] = OUT::number(sum.values[i] * scale * column_scale);
  }
//% elif epilogue == "silu"
#pragma unroll
  for (int i = 0; i < kStored; ++i) {
    const float gate = sum.values[2 * i];
    stored.values[i] = OUT::number(gate / (1.0f + __expf(-gate)) * sum.values[2 * i + 1]);
  }
//% else
#pragma unroll
  for (int i = 0; i < kGroup; ++i) stored.values[i] = OUT::number(sum.values[i]);
//% endif
  constexpr int kWidth = kColumns / (kGroup / kStored);  // of out
  const size_t at = static_cast<size_t>(task.token + group / kGroups) * kWidth + column / (kGroup / kStored);
  *reinterpret_cast<Stored*>(out + at) = stored;
}

//% if split > 1 and reduction == "cluster"
// Each block of the cluster gets its share of the groups from all of them, and stores them.
__device__ __forceinline__ void reduce_in_cluster(OUT::Number* out, float* parts,
                                                  unsigned char* received, tune::u32 barrier,
                                                  const Task& task, int rank) {
  const int groups = task.tokens * kGroups;
  const tune::u32 to = tune::shared_address(received);
  if constexpr (kShare == 1) tune::cluster_wait();  // all blocks are there, and their barriers
  for (int group = threadIdx.x; group < groups; group += kThreads) {
    const int owner = share_rank() * kSplit + group % kSplit;
    const int at = (rank * kOwn + group / kSplit) * 16;
    const Group sum = block_sum(parts, group);
    tune::cluster_store_async(tune::map_shared(to + at, owner),
                              *reinterpret_cast<const float4*>(&sum),
                              tune::map_shared(barrier, owner));
  }
  tune::mbarrier_wait(barrier, 0);
  const Group* all = reinterpret_cast<const Group*>(received);
  for (int own = threadIdx.x; own * kSplit + rank < groups; own += kThreads) {
    Group sum = all[own];
#pragma unroll
    for (int from = 1; from < kSplit; ++from) sum = sum + all[from * kOwn + own];
    store(out, task, own * kSplit + rank, sum);
  }
}

//% elif split > 1 and reduction == "last"
// Every block leaves its sums in global memory; the last one adds up those of all, in their order.
__device__ __forceinline__ void reduce_by_last(OUT::Number* out, float* parts, float* partial,
                                               tune::u32* done, const Task& task, int rank) {
  __shared__ bool last;
  const int tile = blockIdx.x / (kSplit * kShare) * kShare + share_rank();
  const int groups = task.tokens * kGroups;
  constexpr int kRoom = kTokens * kTileN;  // numbers of a block
  float* all = partial + static_cast<size_t>(tile) * kSplit * kRoom;
  for (int group = threadIdx.x; group < groups; group += kThreads) {
    *reinterpret_cast<Group*>(all + rank * kRoom + group * kGroup) = block_sum(parts, group);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    last = tune::atomic_add_acq_rel(done + tile, 1) == kSplit - 1;
    if (last) done[tile] = 0;
  }
  __syncthreads();
  if (!last) return;
  for (int group = threadIdx.x; group < groups; group += kThreads) {
    Group sum = *reinterpret_cast<const Group*>(all + group * kGroup);
#pragma unroll
    for (int from = 1; from < kSplit; ++from) {
      sum = sum + *reinterpret_cast<const Group*>(all + from * kRoom + group * kGroup);
    }
    store(out, task, group, sum);
  }
}

//% endif
