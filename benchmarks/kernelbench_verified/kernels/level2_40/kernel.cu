// A kernel for mul_add.py: out [batch_size, n4096] from linear [batch_size, n4096], row-major.
#define BLOCK_SIZE 256

__global__ void mul_add_kernel(const float* __restrict__ linear, float* __restrict__ out, int batch_size, int n4096) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * n4096) return;
  const float x = linear[i];
  out[i] = x * 0.5f + x;
}

void launch(const float* __restrict__ linear, float* __restrict__ out, int batch_size, int n4096) {
  const int blocks = (batch_size * n4096 + BLOCK_SIZE - 1) / BLOCK_SIZE;
  mul_add_kernel<<<blocks, BLOCK_SIZE>>>(linear, out, batch_size, n4096);
}
