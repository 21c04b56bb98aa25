#include "cudaUtils.h"

#include <cstdint>

namespace tensorrt_llm
{
namespace kernels
{

constexpr int TILE_DIM = 32;
constexpr int BLOCK_ROWS = 8;

struct TransposeParams
{
    void* output;
    void const* input;
    int32_t batchSize;
    int32_t rows;
    int32_t cols;
};

template <typename T>
__global__ void transposeBatched(TransposeParams const params)
{
    __shared__ T tile[TILE_DIM][TILE_DIM + 1];
    T* output = reinterpret_cast<T*>(params.output);
    T const* input = reinterpret_cast<T const*>(params.input);
    int64_t const base = static_cast<int64_t>(blockIdx.z) * params.rows * params.cols;

    int col = blockIdx.x * TILE_DIM + threadIdx.x;
    int row = blockIdx.y * TILE_DIM + threadIdx.y;
#pragma unroll
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS)
    {
        if (col < params.cols && row + j < params.rows)
            tile[threadIdx.y + j][threadIdx.x] = input[base + (row + j) * params.cols + col];
    }
    __syncthreads();
    col = blockIdx.y * TILE_DIM + threadIdx.x;
    row = blockIdx.x * TILE_DIM + threadIdx.y;
#pragma unroll
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS)
    {
        if (col < params.rows && row + j < params.cols)
            output[base + (row + j) * params.rows + col] = tile[threadIdx.x][threadIdx.y + j];
    }
}

template <typename T>
void launchTranspose(TransposeParams const& params, cudaStream_t stream)
{
    dim3 const block(TILE_DIM, BLOCK_ROWS);
    dim3 const grid(common::divUp(params.cols, TILE_DIM), common::divUp(params.rows, TILE_DIM), params.batchSize);
    transposeBatched<T><<<grid, block, 0, stream>>>(params);
}

void invokeTransposeHeads(TransposeParams const& params, bool isHalf, cudaStream_t stream)
{
    TLLM_CHECK(params.rows > 0);
    if (isHalf)
    {
        launchTranspose<half>(params, stream);
    }
    else
    {
        launchTranspose<float>(params, stream);
    }
}

} // namespace kernels
} // namespace tensorrt_llm
