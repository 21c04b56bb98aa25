extern "C" __global__ void run(int* y) {
  const int lane = threadIdx.x % 32;
  const unsigned all = ~0u;
  int k = 0;
  auto put = [&](int value) { y[k++ * 32 + lane] = value; };
  put(__shfl_sync(all, lane, lane + 3, 8));
  put(__shfl_up_sync(all, lane, 3, 8));
  put(__shfl_down_sync(all, lane, 3, 8));
  put(__shfl_xor_sync(all, lane, 5, 8));
  put(__shfl_xor_sync(all, lane, 12, 8));
  put(__shfl_sync(all, 1ll << lane, 31) == 1ll << 31);
  put(__shfl_sync(all, 0.5f * lane, 7) == 3.5f);
  put(__popc(__ballot_sync(all, lane % 3 == 0)));
  put(__any_sync(all, lane == 5) * 2 + __all_sync(all, lane < 31));
  put(__reduce_add_sync(all, lane - 20));
  put(__reduce_min_sync(all, lane - 20));
  put(__reduce_max_sync(all, static_cast<unsigned>(lane)));
  put(__reduce_xor_sync(all, 1u << lane) == all);
  int half = lane < 16 ? __reduce_add_sync(0xFFFFu, 1) : 2 * __reduce_add_sync(0xFFFF0000u, 1);
  put(half);
  put(__match_any_sync(all, lane / 4) == 15u << (lane / 4 * 4));
  __syncwarp();
  put(__syncthreads_count(lane % 2));
}
