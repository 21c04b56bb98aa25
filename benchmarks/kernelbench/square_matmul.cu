#define BLOCK_SIZE 256

__global__ void square_matmul_kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)N * N) return;
  float sum = 0.0f;
  for (int k = 0; k < N; ++k) sum += A[i / N * N + k] * B[(long long)k * N + i % N];
  C[i] = sum;
}

void launch(const float* A, const float* B, float* C, int N) {
  square_matmul_kernel<<<(N * N + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(A, B, C, N);
}
