// counts[b] = how many of N keys of 8 bits are b. A block counts in shared memory, a thread one key
// at a time.
constexpr int kBins = 256;

extern "C" __global__ void clear_counts(int* counts, const unsigned char* keys, int N) {
  counts[threadIdx.x] = 0;
}

extern "C" __global__ void count_keys(int* counts, const unsigned char* keys, int N) {
  __shared__ int own[kBins];
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) own[bin] = 0;
  __syncthreads();
  const int stride = gridDim.x * blockDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N; i += stride) {
    atomicAdd(&own[keys[i]], 1);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
    if (own[bin] > 0) atomicAdd(&counts[bin], own[bin]);
  }
}
