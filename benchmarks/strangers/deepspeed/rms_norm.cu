#include "ds_kernel_utils.h"

#include <cooperative_groups/reduce.h>

namespace rms {
constexpr int granularity = 16;
}  // namespace rms

// A row by threadsPerGroup threads, UNROLL accesses of 16 bytes each.
template <typename T, int UNROLL, int threadsPerGroup, int maxThreads>
__global__ void rms_norm_kernel(T* output, const T* vals, const T* gamma, float epsilon, int elems_per_row)
{
    constexpr int T_per_load = rms::granularity / sizeof(T);

    cg::thread_block tb = cg::this_thread_block();
    cg::thread_block_tile<hw_warp_size> warp = cg::tiled_partition<hw_warp_size>(tb);
    __shared__ float partial[maxThreads / hw_warp_size];

    const int block_offset = tb.group_index().x * elems_per_row;
    const int thread_offset = tb.thread_index().x * T_per_load;
    const int stride = blockDim.x * T_per_load;

    float var_sum = 0.f;
    alignas(16) T local_buffer[UNROLL * T_per_load];

#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        T* iteration_buffer = local_buffer + (i * T_per_load);
        const int at = thread_offset + i * stride;
        load_16_bytes(iteration_buffer, vals + block_offset + at, at < elems_per_row);
#pragma unroll
        for (int j = 0; j < T_per_load; j++) {
            const float up_cast = to<float>(iteration_buffer[j]);
            var_sum += up_cast * up_cast;
        }
    }

    var_sum = cg::reduce(warp, var_sum, cg::plus<float>());
    if (warp.thread_rank() == 0) partial[warp.meta_group_rank()] = var_sum;
    tb.sync();
    var_sum = 0.f;
    for (int w = 0; w < warp.meta_group_size(); w++) var_sum += partial[w];
    const float denom = rsqrtf(var_sum / elems_per_row + epsilon);

#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const int at = thread_offset + i * stride;
        if (at < elems_per_row) {
            for (int j = 0; j < T_per_load; j++)
                output[block_offset + at + j] =
                    to<T>(to<float>(local_buffer[i * T_per_load + j]) * denom * to<float>(gamma[at + j]));
        }
    }
}

#define LAUNCH_RMS_NORM(UNROLL, threadsPerGroup, maxThreads)            \
    rms_norm_kernel<T, UNROLL, threadsPerGroup, maxThreads>             \
        <<<grid, block, 0, stream>>>(norm_output, vals, gamma, epsilon, elems_per_row);

template <typename T>
void launch_rms_norm(T* norm_output, const T* vals, const T* gamma, float epsilon, int rows, int elems_per_row,
                     cudaStream_t stream)
{
    constexpr int T_per_load = rms::granularity / sizeof(T);
    constexpr int maxThreads = 256;
    const dim3 grid(rows);
    const dim3 block(maxThreads);
    const int unroll = (elems_per_row + maxThreads * T_per_load - 1) / (maxThreads * T_per_load);

    switch (unroll) {
        case 1: LAUNCH_RMS_NORM(1, maxThreads, maxThreads); break;
        case 2: LAUNCH_RMS_NORM(2, maxThreads, maxThreads); break;
        case 3: LAUNCH_RMS_NORM(3, maxThreads, maxThreads); break;
    }
}

#define INSTANTIATE_LAUNCH_RMS_NORM(T) \
    template void launch_rms_norm<T>(T*, const T*, const T*, float, int, int, cudaStream_t);

INSTANTIATE_LAUNCH_RMS_NORM(float)
INSTANTIATE_LAUNCH_RMS_NORM(__half)
INSTANTIATE_LAUNCH_RMS_NORM(__nv_bfloat16)
