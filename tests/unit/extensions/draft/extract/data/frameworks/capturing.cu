#include <torch/extension.h>
#define LAUNCH(T) scale_kernel<T><<<n / 256, 256>>>(y, x, 2.0f, n)

/* What a kernel gets of a row.

   The host fills it in:
   one for each launch. */
struct Divided {
  static_assert(sizeof(int) == 4, "of 32 bits, \
or there is an overflow");
  __host__ Divided(int by) : by(by) {}
  __host__ __device__ int operator()(int x) const { return x / by; }
  int by;
};

template <typename T>
__global__ void scale_kernel(T* y, const T* x, float by, int n) {
  const Divided half(2);
  auto scaled = [&] __device__(T value) { return static_cast<T>(value * by); };
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (half(i) < n / 2) y[i] = scaled(x[i]);
}

void run(float* y, const float* x, int n) { LAUNCH(float); }
