#include <cuda_bf16.h>
#include <math.h>

constexpr int kThreads = 128;
constexpr int kItemsPerThread = 4;

// An activation, some elements a thread.
__global__ void __launch_bounds__(kThreads, 2)
gelu(__nv_bfloat16* __restrict__ y, const __nv_bfloat16* __restrict__ x, long n)
{
    const long first = (long)blockIdx.x * kThreads * kItemsPerThread + threadIdx.x;
#pragma unroll 4
    for (int k = 0; k < kItemsPerThread; ++k) {
        const long i = first + k * kThreads;
        if (i >= n) return;
        const float v = __bfloat162float(x[i]);
        y[i] = __float2bfloat16(0.5f * v * (1.0f + erff(v * 0.70710678f)));
    }
}

extern "C" void launch_gelu(void* y, const void* x, long n, void* stream)
{
    const int per_block = kThreads * kItemsPerThread;
    gelu<<<(n + per_block - 1) / per_block, kThreads, 0, (cudaStream_t)stream>>>(
        (__nv_bfloat16*)y, static_cast<const __nv_bfloat16*>(x), n);
}
