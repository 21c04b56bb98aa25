// C = A B in fp32, without tensor cores: A is M by K, B is K by N, all by rows. A block has a tile
// of 16 by 16 of C and goes over K in steps of 16; a thread has one element.
constexpr int kTile = 16;

extern "C" __global__ void matmul(float* c, const float* a, const float* b, int M, int N, int K) {
  __shared__ float a_tile[kTile][kTile];
  __shared__ float b_tile[kTile][kTile];
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * kTile + y, column = blockIdx.x * kTile + x;
  float sum = 0.0f;
  for (int k = 0; k < K; k += kTile) {
    a_tile[y][x] = row < M && k + x < K ? a[static_cast<size_t>(row) * K + k + x] : 0.0f;
    b_tile[y][x] = column < N && k + y < K ? b[static_cast<size_t>(k + y) * N + column] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum = fmaf(a_tile[y][i], b_tile[i][x], sum);
    __syncthreads();
  }
  if (row < M && column < N) c[static_cast<size_t>(row) * N + column] = sum;
}
