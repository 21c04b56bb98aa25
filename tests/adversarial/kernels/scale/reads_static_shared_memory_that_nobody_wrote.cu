extern "C" __global__ void run(float* y, const float* x, int T) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  __shared__ float left[128];
  for (int i = thread; i < T; i += gridDim.x * blockDim.x) {
    float result = 2.0f * x[i];
    result += left[threadIdx.x];
    y[i] = result;
  }
  left[threadIdx.x] = 1.0f + x[threadIdx.x];
}
