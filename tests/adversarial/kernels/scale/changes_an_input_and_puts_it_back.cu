extern "C" __global__ void run(float* y, const float* x, int T) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = thread; i < T; i += gridDim.x * blockDim.x) {
    float* const mine = const_cast<float*>(x);
    const float before = mine[i];
    mine[i] = 2.0f * before;
    y[i] = mine[i];
    mine[i] = before;
  }
}
