#define BLOCK_SIZE 256

__global__ void argmax_kernel(const float* __restrict__ x, long long* __restrict__ out, int batch_size, int rows, int columns) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * columns) return;
  const float* first = x + i / columns * rows * columns + i % columns;
  int best = 0;
  for (int r = 1; r < rows; ++r)
    if (first[(long long)r * columns] > first[(long long)best * columns]) best = r;
  out[i] = best;
}

void launch(const float* x, long long* out, int batch_size, int rows, int columns) {
  argmax_kernel<<<(batch_size * columns + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, out, batch_size, rows, columns);
}
