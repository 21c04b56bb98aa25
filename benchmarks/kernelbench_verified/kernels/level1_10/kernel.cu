// A kernel for level1_10.py: out [N, M, L] from A [N, M, K], B [K, L], row-major.
#define BLOCK_SIZE 256

__global__ void level1_10_kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ out, int N, int M, int K, int L) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)N * M * L) return;
  const long long row = i / L;  // n * M + m
  const int l = (int)(i % L);
  const float* a = A + row * K;
  const float* b = B + l;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += a[k] * b[(long long)k * L];
  out[i] = sum;
}

void launch(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ out, int N, int M, int K, int L) {
  const int blocks = (N * M * L + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level1_10_kernel<<<blocks, BLOCK_SIZE>>>(A, B, out, N, M, K, L);
}
