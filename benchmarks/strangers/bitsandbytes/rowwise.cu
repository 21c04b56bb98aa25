#include "common.cuh"
#include "kernels.cuh"

#include <cub/block/block_reduce.cuh>
#if CUB_VERSION >= 200700
#include <cuda/std/functional>
#define CUB_REDUCTIONOP_MAX cuda::maximum<>{}
#else
#define CUB_REDUCTIONOP_MAX cub::Max()
#endif

// Rows of a matrix to eight bits; the largest magnitude of a row is its statistic.
template <typename T, int BLOCK_SIZE>
__launch_bounds__(1024, BNB_WARP_SIZE * 64 / 1024) __global__
    void kQuantizeRowwise8bit(T* __restrict__ A, signed char* out, float* rowStats, int rows, int cols) {
    using BlockReduceT = cub::BlockReduce<float, BLOCK_SIZE>;
    __shared__ typename BlockReduceT::TempStorage temp_storage;
    __shared__ float smem_row_absmax;

    const int row_id = blockIdx.x;
    const T* row_data = A + (row_id * cols);

    float row_local_absmax = -FLT_MIN;
    for (int i = threadIdx.x; i < cols; i += BLOCK_SIZE) {
        const float absval = fabsf(static_cast<float>(row_data[i]));
        row_local_absmax = fmaxf(row_local_absmax, absval);
    }
    const float row_absmax = BlockReduceT(temp_storage).Reduce(row_local_absmax, CUB_REDUCTIONOP_MAX, cols);
    if (threadIdx.x == 0) {
        rowStats[row_id] = smem_row_absmax = row_absmax;
    }
    __syncthreads();

    const float scale = smem_row_absmax > 0.0f ? 127.0f / smem_row_absmax : 0.0f;
    for (int i = threadIdx.x; i < cols; i += BLOCK_SIZE) {
        out[row_id * cols + i] = static_cast<signed char>(rintf(static_cast<float>(row_data[i]) * scale));
    }
}

template __global__ void kQuantizeRowwise8bit<half, 256>(
    half* __restrict__ A, signed char* out, float* rowStats, int rows, int cols);
