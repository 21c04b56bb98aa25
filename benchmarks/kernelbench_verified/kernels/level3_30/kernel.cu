// A kernel for log_clamp_softmax_2.py: out [batch_size, 3, 49, 49] from logit_scale [3, 1, 1], matmul [batch_size, 3, 49, 49], view [n169, 3], view_2 [2401], unsqueeze [1, 64, 1, 49, 49], row-major.
// One row of 49 a warp: lane l holds the columns l and l + 32.
#define BLOCK_SIZE 256  // a multiple of 32

// matmul * exp(min(logit_scale, log(100))) + 16 * sigmoid(view[view_2]) + unsqueeze, at one element of the [49, 49] of a head
__device__ __forceinline__ float logit_at(const float* __restrict__ matmul_row, const float* __restrict__ view, const long long* __restrict__ index_row, const float* __restrict__ mask_row, float scale, int head, int column, int n169) {
  long long index = index_row[column];
  if (index < 0) index += n169;
  const float bias = 16.0f / (1.0f + expf(-view[index * 3 + head]));
  return matmul_row[column] * scale + bias + mask_row[column];
}

__global__ void log_clamp_softmax_2_kernel(const float* __restrict__ logit_scale, const float* __restrict__ matmul, const float* __restrict__ view, const long long* __restrict__ view_2, const float* __restrict__ unsqueeze, float* __restrict__ out, int batch_size, int n169) {
  const int lane = threadIdx.x % 32;
  const long long row = blockIdx.x * (long long)(BLOCK_SIZE / 32) + threadIdx.x / 32;
  if (row >= (long long)batch_size * 3 * 49) return;  // a whole warp leaves

  const int i = (int)(row % 49);
  const long long plane = row / 49;
  const int head = (int)(plane % 3);
  const int window = (int)(plane / 3 % 64);

  const float largest = 4.605170185988092f;  // log(100)
  const float s = logit_scale[head];
  const float scale = expf(s > largest ? largest : s);

  const float* matmul_row = matmul + row * 49;
  const long long* index_row = view_2 + i * 49;
  const float* mask_row = unsqueeze + (window * 49 + i) * 49;
  float* out_row = out + row * 49;

  const bool second = lane + 32 < 49;
  const float x0 = logit_at(matmul_row, view, index_row, mask_row, scale, head, lane, n169);
  const float x1 = second ? logit_at(matmul_row, view, index_row, mask_row, scale, head, lane + 32, n169) : x0;

  float top = fmaxf(x0, x1);
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));

  const float e0 = expf(x0 - top);
  const float e1 = second ? expf(x1 - top) : 0.0f;
  float sum = e0 + e1;
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);

  out_row[lane] = e0 / sum;
  if (second) out_row[lane + 32] = e1 / sum;
}

void launch(const float* __restrict__ logit_scale, const float* __restrict__ matmul, const float* __restrict__ view, const long long* __restrict__ view_2, const float* __restrict__ unsqueeze, float* __restrict__ out, int batch_size, int n169) {
  const long long rows = (long long)batch_size * 3 * 49;
  const int blocks = (rows + BLOCK_SIZE / 32 - 1) / (BLOCK_SIZE / 32);
  log_clamp_softmax_2_kernel<<<blocks, BLOCK_SIZE>>>(logit_scale, matmul, view, view_2, unsqueeze, out, batch_size, n169);
}
