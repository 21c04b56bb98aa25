// A kernel for level1_10.py: out [N, M, L] from A [N, M, K], B [K, L], row-major.
// A is taken as one matrix of N * M rows. A block makes a TILE x TILE tile of out, one element a
// thread, with tiles of A and of B staged in shared memory.
#define TILE 32
#define BLOCK_SIZE (TILE * TILE)

__global__ void __launch_bounds__(BLOCK_SIZE) level1_10_kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ out, int N, int M, int K, int L) {
  __shared__ float As[TILE][TILE];
  __shared__ float Bs[TILE][TILE];
  const int tx = threadIdx.x % TILE;
  const int ty = threadIdx.x / TILE;
  const long long rows = (long long)N * M;
  const int col_tiles = (L - 1) / TILE + 1;
  // Blocks next to each other share their rows of A.
  const long long row = (long long)(blockIdx.x / col_tiles) * TILE + ty;
  const long long col = (long long)(blockIdx.x % col_tiles) * TILE + tx;
  const bool row_in = row < rows;
  const bool col_in = col < L;

  float sum = 0.0f;
  for (long long k0 = 0; k0 < K; k0 += TILE) {
    As[ty][tx] = (row_in && k0 + tx < K) ? A[row * K + k0 + tx] : 0.0f;
    Bs[ty][tx] = (col_in && k0 + ty < K) ? B[(k0 + ty) * L + col] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE; ++k) sum = fmaf(As[ty][k], Bs[k][tx], sum);
    __syncthreads();
  }
  if (row_in && col_in) out[row * L + col] = sum;
}

void launch(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ out, int N, int M, int K, int L) {
  const long long row_tiles = ((long long)N * M + TILE - 1) / TILE;
  const long long col_tiles = ((long long)L + TILE - 1) / TILE;
  const int blocks = (int)(row_tiles * col_tiles);
  level1_10_kernel<<<blocks, BLOCK_SIZE>>>(A, B, out, N, M, K, L);
}
