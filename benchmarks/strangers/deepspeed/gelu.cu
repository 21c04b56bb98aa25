#include "ds_kernel_utils.h"

namespace fused_gelu {
constexpr int granularity = 16;
}

inline __device__ float gelu(const float x)
{
    const float sqrt_param = 0.79788456080286535587989211986876f;
    const float mul_param = 0.044715;
    return x * 0.5f * (1.0f + tanhf(sqrt_param * (x + mul_param * x * x * x)));
}

/*
In-place gelu(biasAdd(x)): 16 bytes a thread.
*/
template <typename T>
__global__ void fused_bias_gelu(T* input, const T* bias, int total_count, int intermediate_size)
{
    constexpr int granularity = 16;
    constexpr int values_per_access = granularity / sizeof(T);
    const int offset = (blockIdx.x * blockDim.x + threadIdx.x) * values_per_access;

    if (offset < total_count) {
        alignas(16) T data[values_per_access];
        alignas(16) T data_bias[values_per_access];
        load_16_bytes(data, input + offset, true);
        load_16_bytes(data_bias, bias + (offset % intermediate_size), bias != nullptr);

#pragma unroll
        for (int i = 0; i < values_per_access; i++) {
            float data_f = to<float>(data[i]);
            float bias_f = to<float>(data_bias[i]);
            data[i] = to<T>(gelu(data_f + bias_f));
        }

        *reinterpret_cast<float4*>(input + offset) = *reinterpret_cast<const float4*>(data);
    }
}

template <typename T>
void launch_bias_gelu(T* input,
                      const T* bias,
                      int intermediate_size,
                      int batch_size,
                      cudaStream_t stream)
{
    constexpr int threads = 1024;
    constexpr int granularity = 16;

    const int total_count = batch_size * intermediate_size;
    const int elems_per_block = threads * (granularity / sizeof(T));
    dim3 block_dims(threads);
    dim3 grid_dims((total_count + elems_per_block - 1) / elems_per_block);

    fused_bias_gelu<<<grid_dims, block_dims, 0, stream>>>(
        input, bias, total_count, intermediate_size);
}

#define INSTANTIATE_LAUNCH_BIAS_GELU(T) \
    template void launch_bias_gelu<T>(T*, const T*, int, int, cudaStream_t);

INSTANTIATE_LAUNCH_BIAS_GELU(float)
#ifdef BF16_AVAILABLE
INSTANTIATE_LAUNCH_BIAS_GELU(__nv_bfloat16)
#endif
INSTANTIATE_LAUNCH_BIAS_GELU(__half)
