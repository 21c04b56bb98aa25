/*# The kernel of all GEMMs; who includes it sets what gemm_blocks.cuh wants, and `kernel`, a name.
    With the reduction `apart`, out has a matrix for each of the blocks that share K. #*/
//% include "gemm_blocks.cuh"
//% if scales != "none"
constexpr int kScalesAt = kReceivedAt + (kCluster ? kSplit * kOwn * 16 : 0);
//% endif
extern "C" __global__ void __launch_bounds__(kThreads@{ ", 1" if path == "boxes" else "" }@)
    @{ kernel }@(OUT::Number* out, const @{ element }@* x, const @{ element }@* w,
//% if scales != "none"
                 const float* x_scale, const float* w_scale,
//% endif
//% if reduction != "apart"
                 float* partial, tune::u32* done,
//% endif
                 int M, int N, int K
//% if boxed
                 , const __grid_constant__ tune::TensorMap wmap,
                 const __grid_constant__ tune::TensorMap xmap
//% endif
    ) {
  extern __shared__ __align__(1024) unsigned char work[];
  float* parts = reinterpret_cast<float*>(work + kPartsAt);
  const int rank = split_rank();
  const int first = kAllStages * rank / kSplit;
  Task task;
  place(task, M);
  task.x = x + static_cast<size_t>(task.token) * kDepth + first * kTileK;
  task.w = w + first * kTileK;
  task.stages = kAllStages * (rank + 1) / kSplit - first;
//% if scales != "none"
  task.scales = reinterpret_cast<float*>(work + kScalesAt);
//% endif
//% if scales == "block"
  const int column = kRest ? min(task.column, kColumns - 1) : task.column;
  const int first_scale = first * (kTileK / kScaleDepth);
  task.token_pitch = (M + 3) / 4 * 4;
  task.token_scales = x_scale + static_cast<size_t>(first_scale) * task.token_pitch + task.token;
  task.column_scales = w_scale + column / 128 * (kDepth / kScaleDepth) + first_scale;
//% elif scales == "token"
  task.token_scales = x_scale + task.token;
  task.column_scales = w_scale + task.column;
//% endif
  if constexpr (kProgrammatic && (kEarlyTrigger || @{ reduction == "apart" }@)) tune::griddepcontrol_launch_dependents();
//% if split > 1 and reduction == "cluster"
  __shared__ tune::u64 arrived;
  const tune::u32 barrier = tune::shared_address(&arrived);
  if (threadIdx.x == 0) {
    tune::mbarrier_init(barrier, 1);
    tune::fence_mbarrier_init();
    tune::mbarrier_arrive_expect_tx(barrier, (task.tokens * kGroups - rank + kSplit - 1) / kSplit * kSplit * 16);
  }
  __syncwarp();
  if constexpr (kShare == 1) tune::cluster_arrive();  // else add_products does, with barriers of its own
//% endif
  if constexpr (kPrefetch) {
    for (int row = threadIdx.x; row < kTileN; row += kThreads) {
      tune::bulk_prefetch(task.weights(row), min(kStages, task.stages) * kTileK * 2);
    }
  }
//% if scales == "token"
  stage_column_scales(task);
//% endif
//% if boxed
  add_products(work, parts, task, {wmap, xmap, first * kTileK});
//% else
  add_products(work, parts, task);
//% endif
//% if scales == "token"
  tune::cp_async_wait<0>();
//% endif
  __syncthreads();
//% if reduction == "apart"
  // A launch of its own adds up what the blocks that share K leave, and is the one that begins early.
  for (int group = threadIdx.x; group < task.tokens * kGroups; group += kThreads) {
    store(out + static_cast<size_t>(rank) * M * kColumns, task, group, block_sum(parts, group));
  }
//% elif split == 1
  for (int group = threadIdx.x; group < task.tokens * kGroups; group += kThreads) {
    store(out, task, group, block_sum(parts, group));
  }
//% elif reduction == "cluster"
  reduce_in_cluster(out, parts, work + kReceivedAt, barrier, task, rank);
//% else
  reduce_by_last(out, parts, partial, done, task, rank);
//% endif
//% if share > 1
  outlive_sharers(task);
//% endif
}
