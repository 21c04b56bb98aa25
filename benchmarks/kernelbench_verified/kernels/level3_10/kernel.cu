// A kernel for batch_norm_add_relu_9.py: out [batch_size, n1024, height, width] from conv2d [batch_size, n1024, height, width], weight [n1024], bias [n1024], part [batch_size, n1024, height, width], row-major.
// One block a channel: the mean, then the variance about that mean (both over batch, height and width), then the output.
#define BLOCK_SIZE 256

// The sum of value over the block, given to every thread; any BLOCK_SIZE will do.
__device__ float block_sum(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int left = BLOCK_SIZE; left > 1;) {
    const int half = (left + 1) / 2;
    if ((int)threadIdx.x < left - half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
    left = half;
  }
  const float total = shared[0];
  __syncthreads();
  return total;
}

__global__ void batch_norm_add_relu_9_kernel(const float* __restrict__ conv2d, const float* __restrict__ weight, const float* __restrict__ bias, const float* __restrict__ part, float* __restrict__ out, int batch_size, int height, int width, int n1024) {
  __shared__ float shared[BLOCK_SIZE];
  const int channel = blockIdx.x;
  const int plane = height * width;
  const int count = batch_size * plane;
  // Element i of the channel lies at first + (i / plane) * skip + i.
  const long long first = (long long)channel * plane;
  const long long skip = (long long)(n1024 - 1) * plane;

  float sum = 0.0f;
  for (int i = threadIdx.x; i < count; i += BLOCK_SIZE) sum += conv2d[first + (i / plane) * skip + i];
  const float mean = block_sum(sum, shared) / (float)count;

  float squares = 0.0f;
  for (int i = threadIdx.x; i < count; i += BLOCK_SIZE) {
    const float d = conv2d[first + (i / plane) * skip + i] - mean;
    squares += d * d;
  }
  const float variance = block_sum(squares, shared) / (float)count;

  const float scale = weight[channel] / sqrtf(variance + 1e-5f);
  const float shift = bias[channel];
  for (int i = threadIdx.x; i < count; i += BLOCK_SIZE) {
    const long long at = first + (i / plane) * skip + i;
    const float y = (conv2d[at] - mean) * scale + shift + part[at];
    out[at] = y < 0.0f ? 0.0f : y;
  }
}

void launch(const float* __restrict__ conv2d, const float* __restrict__ weight, const float* __restrict__ bias, const float* __restrict__ part, float* __restrict__ out, int batch_size, int height, int width, int n1024) {
  const int blocks = n1024;
  batch_norm_add_relu_9_kernel<<<blocks, BLOCK_SIZE>>>(conv2d, weight, bias, part, out, batch_size, height, width, n1024);
}
