// Each block sums its part of a row; the last one has fewer elements than threads.
extern "C" __global__ void row_sums(float* out, const float* in, int N) {
  __shared__ float parts[64];
  const int row = blockIdx.x;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < N; i += 64) {
    sum += in[row * N + i];
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 32; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[row] = parts[0];
}

__global__ void unused(float* out) { out[threadIdx.x] = 1.0f; }

int on_the_host(int n) { return n + 1; }
