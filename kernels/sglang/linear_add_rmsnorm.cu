// residual += x * w^T, and out = residual / sqrt(mean of its squares + eps) * g by rows, for few rows of x:
// bf16 in and out, float32 in between. What is normalized is the sum before it is rounded.
//
// Any M and N; K is a multiple of 8. The squares of a row of sums must add up to less than the largest
// float. The products are those of gemm_small_m: the weights are the 16-row operand of the tensor cores'
// multiply and rows of x its 8 columns. Their sums stay in float32 between the two launches.
#include <tune/tensor.h>
#include <cuda_bf16.h>

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kColumns = 16 * kWarps;  // of out, in a block
constexpr int kDepth = 64;             // of K, in a stage
constexpr int kStages = 3;
constexpr int kVector = 8;             // elements of a copy of 16 bytes
constexpr int kPitch = kDepth + kVector;  // eight rows of a matrix lie in different banks

// Copies `rows` rows of a matrix, kDepth of K from `k` on; what is past the matrix becomes zero.
__device__ __forceinline__ void copy_rows(__nv_bfloat16 (*to)[kPitch], const __nv_bfloat16* from,
                                          int rows, int first, int all, int k, int K) {
  constexpr int kVectors = kDepth / kVector;
  for (int i = threadIdx.x; i < rows * kVectors; i += kThreads) {
    const int row = i / kVectors;
    const int column = i % kVectors * kVector;
    const bool inside = first + row < all && k + column < K;
    const size_t at = inside ? static_cast<size_t>(first + row) * K + k + column : 0;
    tune::cp_async<16>(tune::shared_address(&to[row][column]), from + at, inside ? 16 : 0);
  }
}

// kRows: rows of x in a block, a multiple of 8. Grid: columns of out / 64, rows of x / kRows.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    linear_sums(float* __restrict__ sums, const __nv_bfloat16* __restrict__ x,
                const __nv_bfloat16* __restrict__ w, int M, int N, int K) {
  __shared__ __align__(16) __nv_bfloat16 weights[kStages][kColumns][kPitch];
  __shared__ __align__(16) __nv_bfloat16 rows[kStages][kRows][kPitch];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int n0 = blockIdx.x * kColumns;
  const int m0 = blockIdx.y * kRows;
  const int steps = (K + kDepth - 1) / kDepth;

  const auto copy = [&](int step) {
    if (step < steps) {
      copy_rows(weights[step % kStages], w, kColumns, n0, N, step * kDepth, K);
      copy_rows(rows[step % kStages], x, kRows, m0, M, step * kDepth, K);
    }
    tune::cp_async_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) copy(step);

  float tiles[kRows / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    tune::cp_async_wait<kStages - 2>();
    __syncthreads();
    copy(step + kStages - 1);
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      unsigned a[4];
      tune::ldmatrix(a, tune::shared_address(
                            &weights[step % kStages][warp * 16 + lane % 16][k + lane / 16 * 8]));
#pragma unroll
      for (int tile = 0; tile < kRows / 8; ++tile) {
        unsigned b[2];
        tune::ldmatrix(b, tune::shared_address(
                              &rows[step % kStages][tile * 8 + lane % 8][k + lane / 8 % 2 * 8]));
        tune::mma<tune::bf16>(tiles[tile], a, b);
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kRows / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = n0 + warp * 16 + lane / 4 + i / 2 * 8;
      const int m = m0 + tile * 8 + lane % 4 * 2 + i % 2;
      if (m < M && n < N) sums[static_cast<size_t>(m) * N + n] = tiles[tile][i];
    }
  }
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// A block for each row, of 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    linear_add_rmsnorm(__nv_bfloat16* __restrict__ out, __nv_bfloat16* __restrict__ residual,
                       float* __restrict__ sums, const __nv_bfloat16* __restrict__ g, float eps, int M,
                       int N) {
  __shared__ float partial[8];
  const size_t row = static_cast<size_t>(blockIdx.x) * N;
  float squares = 0.0f;
  for (int n = threadIdx.x; n < N; n += blockDim.x) {
    const float sum = sums[row + n] + __bfloat162float(residual[row + n]);
    squares += sum * sum;
    residual[row + n] = __float2bfloat16(sum);
    sums[row + n] = sum;
  }
  squares = warp_sum(squares);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = squares;
  __syncthreads();
  float total = 0.0f;
  for (int i = 0; i < 8; ++i) total += partial[i];
  const float scale = rsqrtf(total / N + eps);
  for (int n = threadIdx.x; n < N; n += blockDim.x) {
    out[row + n] = __float2bfloat16(sums[row + n] * scale * __bfloat162float(g[n]));
  }
}
