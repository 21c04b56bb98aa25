extern "C" __global__ void clear(int* y, const int* x, int T) {
  y[threadIdx.x] = 0;
}

extern "C" __global__ void count(int* y, const int* x, int T) {
  __shared__ int mine[64];
  mine[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < T; i += gridDim.x * blockDim.x)
    atomicAdd_block(&mine[x[i]], 1);
  __syncthreads();
  atomicAdd(&y[threadIdx.x], mine[threadIdx.x]);
}
