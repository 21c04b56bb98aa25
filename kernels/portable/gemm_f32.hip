// c[M, N] = a[M, K] @ b[K, N] in float32, row by row: tiles of 16 x 16 in shared memory.
#include <hip/hip_runtime.h>

constexpr int kTile = 16;

extern "C" __global__ void gemm_f32(float* c, const float* a, const float* b, int M, int N, int K) {
  __shared__ float of_a[kTile][kTile], of_b[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y, column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0.0f;
  for (int first = 0; first < K; first += kTile) {
    const int in_a = first + threadIdx.x, in_b = first + threadIdx.y;
    of_a[threadIdx.y][threadIdx.x] = row < M && in_a < K ? a[row * K + in_a] : 0.0f;
    of_b[threadIdx.y][threadIdx.x] = in_b < K && column < N ? b[in_b * N + column] : 0.0f;
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += of_a[threadIdx.y][k] * of_b[k][threadIdx.x];
    __syncthreads();
  }
  if (row < M && column < N) c[row * N + column] = sum;
}
