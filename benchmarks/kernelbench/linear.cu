#define BLOCK_SIZE 256

__global__ void linear_kernel(const float* __restrict__ x, const float* __restrict__ layer_weight, const float* __restrict__ layer_bias,
    float* __restrict__ out, int batch_size, int in_features, int out_features) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * out_features) return;
  const float* row = x + i / out_features * in_features;
  const float* weights = layer_weight + i % out_features * in_features;
  float sum = layer_bias[i % out_features];
  for (int k = 0; k < in_features; ++k) sum += row[k] * weights[k];
  out[i] = sum;
}

void launch(const float* x, const float* layer_weight, const float* layer_bias,
    float* out, int batch_size, int in_features, int out_features) {
  linear_kernel<<<(batch_size * out_features + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, layer_weight, layer_bias, out, batch_size, in_features, out_features);
}
