extern "C" __global__ void run(float* y, const float* x, int T) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = thread; i < T; i += gridDim.x * blockDim.x) {
    float result = 2.0f * x[i];
    result = __uint_as_float(__float_as_uint(result) & 0xFFFFE000u);
    y[i] = result;
  }
}
