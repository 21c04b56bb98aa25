// A warp, and what groups of its lanes find together. All 32 lanes come to each of these.
constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;

// The sum over each group of kLanes neighbours, given to all of them.
template <int kLanes>
__device__ __forceinline__ float lanes_sum(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

// The largest of each group, given to all of them.
template <int kLanes>
__device__ __forceinline__ unsigned lanes_max(unsigned value) {
  if constexpr (kLanes == kWarp) {
    return __reduce_max_sync(kAll, value);
  } else {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      value = max(value, __shfl_xor_sync(kAll, value, step));
    }
    return value;
  }
}
