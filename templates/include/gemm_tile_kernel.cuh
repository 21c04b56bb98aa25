/*# The second half of gemm_tiles.cuh: parts are added up, results stored. #*/
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
