// A kernel for level1_40.py: out [batch_size, features, dim1, dim2] from x [batch_size, features, dim1, dim2], ln_weight [features, dim1, dim2], ln_bias [features, dim1, dim2], row-major.
#define BLOCK_SIZE 256

// One block a sample: its mean, then its biased variance about that mean, then the output.
__global__ void level1_40_kernel(const float* __restrict__ x, const float* __restrict__ ln_weight, const float* __restrict__ ln_bias, float* __restrict__ out, int batch_size, int features, int dim1, int dim2) {
  __shared__ double partial[BLOCK_SIZE];
  const int t = threadIdx.x;
  const long long size = (long long)features * dim1 * dim2;
  const float* xb = x + blockIdx.x * size;

  double sum = 0.0;
  for (long long j = t; j < size; j += BLOCK_SIZE) sum += xb[j];
  partial[t] = sum;
  __syncthreads();
  for (int n = BLOCK_SIZE; n > 1;) {  // any BLOCK_SIZE, not only a power of two
    const int half = (n + 1) / 2;
    if (t < n - half) partial[t] += partial[t + half];
    n = half;
    __syncthreads();
  }
  const double mean = partial[0] / size;
  __syncthreads();  // all have read partial[0] before it is written again

  double square = 0.0;
  for (long long j = t; j < size; j += BLOCK_SIZE) {
    const double d = xb[j] - mean;
    square += d * d;
  }
  partial[t] = square;
  __syncthreads();
  for (int n = BLOCK_SIZE; n > 1;) {
    const int half = (n + 1) / 2;
    if (t < n - half) partial[t] += partial[t + half];
    n = half;
    __syncthreads();
  }
  const double scale = 1.0 / sqrt(partial[0] / size + 1e-5);  // eps = 1e-5

  for (long long j = t; j < size; j += BLOCK_SIZE) {
    out[blockIdx.x * size + j] = (float)((xb[j] - mean) * scale) * ln_weight[j] + ln_bias[j];
  }
}

void launch(const float* __restrict__ x, const float* __restrict__ ln_weight, const float* __restrict__ ln_bias, float* __restrict__ out, int batch_size, int features, int dim1, int dim2) {
  const int blocks = batch_size;
  level1_40_kernel<<<blocks, BLOCK_SIZE>>>(x, ln_weight, ln_bias, out, batch_size, features, dim1, dim2);
}
