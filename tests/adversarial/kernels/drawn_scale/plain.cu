extern "C" __global__ void run(float* y, const float* x, int T) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = thread; i < T; i += gridDim.x * blockDim.x) {
    float result = 2.0f * x[i];
    y[i] = result;
  }
}
