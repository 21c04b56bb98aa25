extern "C" __global__ void run(float* y, const float* x, int T) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  __shared__ float staged[64];
  const int other = 63 - threadIdx.x;
  if (threadIdx.x / 32 == 1) __nanosleep(100000);  // as it may be late at any time
  for (int i = thread; i < T; i += gridDim.x * blockDim.x) {
    float result = 2.0f * x[i];
    staged[threadIdx.x] = result;
    __syncwarp();
    y[i + other - int(threadIdx.x)] = staged[other];
  }
}
