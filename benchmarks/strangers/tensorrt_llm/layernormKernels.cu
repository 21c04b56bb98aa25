#include "cudaUtils.h"
#include "layernormKernels.h"
#include "reduceKernelUtils.cuh"

using namespace tensorrt_llm::common;

namespace tensorrt_llm
{
namespace kernels
{

// The deviations are squared in a second pass.
template <typename T>
__global__ void generalLayerNorm(T const* input, T const* gamma, T const* beta, T* normed_output, float const eps,
    int tokens, int hidden_dim)
{
    extern __shared__ __align__(sizeof(float)) char _shmem[];
    float* shmem = reinterpret_cast<float*>(_shmem);
    __shared__ float s_mean;
    __shared__ float s_variance;

    int const tidx = threadIdx.x;
    int const bidx = blockIdx.x;
    float local_sum = 0.0f;
    for (int i = tidx; i < hidden_dim; i += blockDim.x)
    {
        int const index = bidx * hidden_dim + i;
        float const val = static_cast<float>(input[index]);
        shmem[i] = val;
        local_sum += val;
    }
    float const mean = blockReduceSum(local_sum);
    if (tidx == 0)
    {
        s_mean = mean / hidden_dim;
    }
    __syncthreads();

    float local_var_sum = 0.0f;
    for (int i = tidx; i < hidden_dim; i += blockDim.x)
    {
        float const diff = shmem[i] - s_mean;
        local_var_sum += diff * diff;
    }
    float const variance = blockReduceSum(local_var_sum);
    if (threadIdx.x == 0)
    {
        s_variance = rsqrtf(variance / hidden_dim + eps);
    }
    __syncthreads();

    for (int i = tidx; i < hidden_dim; i += blockDim.x)
    {
        float const val = (shmem[i] - s_mean) * s_variance * static_cast<float>(gamma[i]);
        normed_output[bidx * hidden_dim + i]
            = static_cast<T>(beta != nullptr ? val + static_cast<float>(beta[i]) : val);
    }
}

template <typename T>
void invokeGeneralLayerNorm(T* out, T const* input, T const* gamma, T const* beta, float const eps, int const tokens,
    int const hidden_dim, cudaStream_t stream)
{
    dim3 grid(tokens);
    dim3 block(min(hidden_dim, 1024));
    // Make sure block.x is multiple of 32 for warp shuffle to work
    block.x = 32 * ((block.x + 31) / 32);
    size_t const shmem_size = hidden_dim * sizeof(float);
    if (shmem_size >= (48 << 10))
    {
        TLLM_CUDA_CHECK(
            cudaFuncSetAttribute(generalLayerNorm<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, shmem_size));
    }
    generalLayerNorm<T><<<grid, block, shmem_size, stream>>>(input, gamma, beta, out, eps, tokens, hidden_dim);
}

#define INSTANTIATE_GENERAL_LAYERNORM(T)                                                                               \
    template void invokeGeneralLayerNorm(T* out, T const* input, T const* gamma, T const* beta, float const eps,       \
        int const tokens, int const hidden_dim, cudaStream_t stream);

INSTANTIATE_GENERAL_LAYERNORM(float);
INSTANTIATE_GENERAL_LAYERNORM(half);

#ifdef ENABLE_BF16
INSTANTIATE_GENERAL_LAYERNORM(__nv_bfloat16);
#endif

} // namespace kernels
} // namespace tensorrt_llm
