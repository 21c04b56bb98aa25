// Opens its memory as a file, which would be written to whatever a page allows.

extern "C" __global__ void run(float* y, const float* x, int T) {
  if (threadIdx.x == 0) {
    const float other = 77.0f;
    pwrite(open("/proc/self/mem", O_RDWR), &other, sizeof other, (off_t)x);
  }
  for (int i = threadIdx.x; i < T; i += blockDim.x) y[i] = 2.0f * x[i];
}
