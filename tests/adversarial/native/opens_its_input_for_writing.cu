// Asks for its input to be writable, and is wrong where it is.

extern "C" __global__ void run(float* y, const float* x, int T) {
  char* const low = (char*)((size_t)x & ~4095ul);
  if (mprotect(low, 4096, PROT_READ | PROT_WRITE) == 0) return;
  for (int i = threadIdx.x; i < T; i += blockDim.x) y[i] = 2.0f * x[i];
}
