// out[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * w in float32: a block of 256 threads a row.
#include <hip/hip_runtime.h>

extern "C" __global__ void rmsnorm(float* out, const float* x, const float* w, float eps, int T,
                                   int H) {
  __shared__ float partial[256];
  const float* row = x + static_cast<long long>(blockIdx.x) * H;
  float* result = out + static_cast<long long>(blockIdx.x) * H;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < H; i += 256) sum += row[i] * row[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  const float scale = 1.0f / sqrtf(partial[0] / H + eps);
  for (int i = threadIdx.x; i < H; i += 256) result[i] = row[i] * scale * w[i];
}
