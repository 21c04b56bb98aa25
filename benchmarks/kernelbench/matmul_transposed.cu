#define BLOCK_SIZE 256

__global__ void matmul_transposed_kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ out, int M, int K, int N) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)M * N) return;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += A[(long long)k * M + i / N] * B[(long long)k * N + i % N];
  out[i] = sum;
}

void launch(const float* A, const float* B, float* out, int M, int K, int N) {
  matmul_transposed_kernel<<<(M * N + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(A, B, out, M, K, N);
}
