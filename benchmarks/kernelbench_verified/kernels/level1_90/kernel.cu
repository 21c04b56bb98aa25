// A kernel for level1_90.py: out [batch_size, input_shape_0] from x [batch_size, input_shape_0], row-major.
#define BLOCK_SIZE 256

// One row a thread: the running product along dim 1, in double, so that it is rounded once an element
// and does not overflow to infinity where a later product is finite again.
__global__ void level1_90_kernel(const float* __restrict__ x, float* __restrict__ out, int batch_size, int input_shape_0) {
  const long long row = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (row >= batch_size) return;
  const float* xr = x + row * input_shape_0;
  float* outr = out + row * input_shape_0;
  double product = 1.0;
  for (int j = 0; j < input_shape_0; ++j) {
    product *= xr[j];
    outr[j] = (float)product;
  }
}

void launch(const float* __restrict__ x, float* __restrict__ out, int batch_size, int input_shape_0) {
  const int blocks = (batch_size + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level1_90_kernel<<<blocks, BLOCK_SIZE>>>(x, out, batch_size, input_shape_0);
}
