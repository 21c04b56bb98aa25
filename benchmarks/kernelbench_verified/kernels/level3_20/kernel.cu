// A kernel for batch_norm_hardtanh_5.py: out [batch_size, n144, n224, n224] from conv2d [batch_size, n144, n224, n224], weight [n144], bias [n144], row-major.
// One block a channel: the mean, then the variance (biased, as in training), then the output.
// Numbers are taken relative to the channel's first one, so that a large common offset costs no digits.
#define BLOCK_SIZE 1024

// The sum of v over the block, in every thread. BLOCK_SIZE is a multiple of 32, at most 1024.
__device__ __forceinline__ float block_sum(float v, float* shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int s = 16; s > 0; s >>= 1) v += __shfl_xor_sync(0xffffffffu, v, s);
  __syncthreads();  // shared may still be read from the sum before
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  v = lane < BLOCK_SIZE / 32 ? shared[lane] : 0.0f;
  for (int s = 16; s > 0; s >>= 1) v += __shfl_xor_sync(0xffffffffu, v, s);
  return v;
}

__global__ void __launch_bounds__(BLOCK_SIZE) batch_norm_hardtanh_5_kernel(const float* __restrict__ conv2d, const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ out, int batch_size, int n224, int n144) {
  __shared__ float shared[BLOCK_SIZE / 32];
  const int c = blockIdx.x;
  const long long plane = (long long)n224 * n224;
  const long long count = plane * batch_size;        // elements of the channel
  const long long skip = plane * (n144 - 1);         // from the end of the channel's plane to its next plane
  const long long first = plane * c;                 // the channel's first element

  // The start of this thread: element threadIdx.x of the channel, at place p of its plane.
  long long p0 = threadIdx.x, at0 = first + threadIdx.x;
  while (p0 >= plane) { p0 -= plane; at0 += skip; }

  const float shift = conv2d[first];

  float sum = 0.0f;
  long long p = p0, at = at0;
  for (long long i = threadIdx.x; i < count; i += BLOCK_SIZE) {
    sum += conv2d[at] - shift;
    p += BLOCK_SIZE; at += BLOCK_SIZE;
    while (p >= plane) { p -= plane; at += skip; }
  }
  const float mean = block_sum(sum, shared) / (float)count;  // relative to shift

  float squares = 0.0f;
  p = p0; at = at0;
  for (long long i = threadIdx.x; i < count; i += BLOCK_SIZE) {
    const float d = (conv2d[at] - shift) - mean;
    squares += d * d;
    p += BLOCK_SIZE; at += BLOCK_SIZE;
    while (p >= plane) { p -= plane; at += skip; }
  }
  const float var = block_sum(squares, shared) / (float)count;

  const float scale = weight[c] / sqrtf(var + 1e-5f);
  const float b = bias[c];
  p = p0; at = at0;
  for (long long i = threadIdx.x; i < count; i += BLOCK_SIZE) {
    const float y = ((conv2d[at] - shift) - mean) * scale + b;
    out[at] = y < 0.0f ? 0.0f : (y > 6.0f ? 6.0f : y);  // a NaN stays one
    p += BLOCK_SIZE; at += BLOCK_SIZE;
    while (p >= plane) { p -= plane; at += skip; }
  }
}

void launch(const float* __restrict__ conv2d, const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ out, int batch_size, int n224, int n144) {
  const int blocks = n144;
  batch_norm_hardtanh_5_kernel<<<blocks, BLOCK_SIZE>>>(conv2d, weight, bias, out, batch_size, n224, n144);
}
