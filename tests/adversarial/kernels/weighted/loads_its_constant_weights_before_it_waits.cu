// The launch before may still be at work; nobody writes the weights.
extern "C" __global__ void run(float* y, const float* x, const float* w, int T) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float weight = i < T ? *static_cast<const volatile float*>(w + i) : 0.0f;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (i < T) y[i] = x[i] * weight;
}
