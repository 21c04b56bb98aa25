// As if nothing wrote x, which is not constant.
extern "C" __global__ void run(float* y, const float* x, const float* w, int T) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float value = i < T ? *static_cast<const volatile float*>(x + i) : 0.0f;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (i < T) y[i] = value * w[i];
}
