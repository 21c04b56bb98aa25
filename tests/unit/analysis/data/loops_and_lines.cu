#include <cuda_fp16.h>
#include <mma.h>

extern "C" __global__ void scalar(float* __restrict__ out, const float* __restrict__ in) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i];  // scalar copy
}

extern "C" __global__ void vector(float4* __restrict__ out, const float4* __restrict__ in, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    out[i] = in[i];  // vector copy
}

extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* out, const float* in, int n) {
  float v[64] = {};
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
      v[i] += in[(k * 64 + i) * 1024 + threadIdx.x] * v[(i * 7 + 1) % 64];  // spills
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) out[i * 1024 + threadIdx.x] = v[i];
}

extern "C" __global__ void reduce(float* out, const float* in, int from) {
  __shared__ float part[1024];
  part[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
#pragma unroll 1
  for (int d = from; d > 0; d /= 2) {
    if (threadIdx.x < d) part[threadIdx.x] += part[threadIdx.x + d];
    __syncthreads();  // barrier
  }
  if (threadIdx.x == 0) atomicAdd(out, part[0]);
}

template <int N>
__global__ void multiply(float* out, const half* a, const half* b) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> x;
  fragment<matrix_b, 16, 16, 16, half, col_major> y;
  fragment<accumulator, 16, 16, 16, float> sum;
  fill_fragment(sum, 0.0f);
  load_matrix_sync(x, a, N);
  load_matrix_sync(y, b, N);
  mma_sync(sum, x, y, sum);  // product
  store_matrix_sync(out, sum, N, mem_row_major);
}

extern "C" __global__ void pairs(float* out, int n) {
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    out[i] = __expf(out[i]);  // outer
#pragma unroll 1
    for (int j = 0; j < i; ++j) out[i + j] = 1.0f / out[j];  // inner
  }
}

__device__ __noinline__ double far(double x, int n) {
  return n > 0 ? far(x * x, n - 1) + x : x;  // far
}

extern "C" __global__ void calling(double* out, int n) { out[1] = far(out[0], n); }
