#pragma once

#include <cuda_runtime.h>

namespace trellis::kit
{

#define WHOLE_WARP 0xffffffffu

template <typename V>
__device__ inline V warpTotal(V part)
{
#pragma unroll
    for (int apart = 1; apart < 32; apart <<= 1)
    {
        part = part + __shfl_xor_sync(WHOLE_WARP, part, apart);
    }
    return part;
}

// The total of a block of whole warps, for each of its threads.
template <typename V>
__device__ inline V teamTotal(V part)
{
    __shared__ V perWarp[32];
    __syncthreads();
    V const own = warpTotal(part);
    if ((threadIdx.x & 31) == 0)
    {
        perWarp[threadIdx.x >> 5] = own;
    }
    __syncthreads();
    int const lane = threadIdx.x & 31;
    return warpTotal(lane < static_cast<int>(blockDim.x >> 5) ? perWarp[lane] : V(0));
}

} // namespace trellis::kit
