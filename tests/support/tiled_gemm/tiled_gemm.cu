extern "C" __global__ void tiled_gemm(float* c, const unsigned short* x, const unsigned short* w,
                                      int N, int K) {
  const int n = blockIdx.x * 64 + threadIdx.x, m = blockIdx.y;
  if (n >= N) return;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k)
    sum += __uint_as_float(x[m * K + k] << 16) * __uint_as_float(w[n * K + k] << 16);
  c[m * N + n] = sum;
}
