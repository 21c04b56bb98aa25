/*# Where there are boxes: how a block begins, and what its last warp does while the others multiply. #*/
//% macro start_barriers()
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      tune::mbarrier_init(full + s * 8, 1);
      tune::mbarrier_init(empty + s * 8, kShare * kWarps);
    }
    tune::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (kShare > 1) tune::cluster_arrive_relaxed();
//% endmacro

//% macro copy_stages()
    const tune::u64 policy = kStreaming ? tune::l2_evict_first() : 0;
    if (lane == 0) copy_early(work, full, boxes, task, policy);
    meet_sharers();
    if (lane == 0) copy_rest(work, full, empty, boxes, task, policy);
    __syncwarp();
    wait_for_inputs();  // of all lanes, which store results too
//% endmacro
