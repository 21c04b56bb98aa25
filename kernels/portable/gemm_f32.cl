// c[M, N] = a[M, K] @ b[K, N] in float32, row by row: tiles of 16 x 16 in local memory.
#define TILE 16

__kernel void gemm_f32(__global float* c, __global const float* a, __global const float* b, int M,
                       int N, int K) {
  __local float of_a[TILE][TILE], of_b[TILE][TILE];
  const int x = get_local_id(0), y = get_local_id(1);
  const int row = get_global_id(1), column = get_global_id(0);
  float sum = 0.0f;
  for (int first = 0; first < K; first += TILE) {
    of_a[y][x] = row < M && first + x < K ? a[row * K + first + x] : 0.0f;
    of_b[y][x] = first + y < K && column < N ? b[(first + y) * N + column] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < TILE; ++k) sum += of_a[y][k] * of_b[k][x];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (row < M && column < N) c[row * N + column] = sum;
}
