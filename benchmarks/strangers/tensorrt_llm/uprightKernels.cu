#include "launchKit.h"
#include "totals.cuh"
#include "uprightKernels.h"

namespace trellis
{
namespace ground
{

using namespace trellis::kit;

// Shrinks the heavier side of each row and stretches the lighter one, about its mean.
template <typename T>
__global__ void uprightRows(T const* leaning, T const* gain, T const* shelf, T* upright, float const least, int width)
{
    extern __shared__ __align__(16) unsigned char rowBytes[];
    float* const row = reinterpret_cast<float*>(rowBytes);
    __shared__ float pivot, lean;

    size_t const begin = static_cast<size_t>(width) * blockIdx.x;
    float load = 0.f;
    for (int x = threadIdx.x; x < width; x += blockDim.x)
    {
        row[x] = static_cast<float>(leaning[begin + x]);
        load += row[x];
    }
    load = teamTotal(load);
    if (threadIdx.x == 0)
    {
        pivot = load / width;
    }
    __syncthreads();

    float torque = 0.f, size = 0.f;
    for (int x = threadIdx.x; x < width; x += blockDim.x)
    {
        float const arm = row[x] - pivot;
        torque += arm * fabsf(arm);
        size += arm * arm;
    }
    torque = teamTotal(torque);
    size = teamTotal(size);
    if (threadIdx.x == 0)
    {
        lean = torque / (size + least);
    }
    __syncthreads();

    for (int x = threadIdx.x; x < width; x += blockDim.x)
    {
        float const arm = row[x] - pivot;
        float stood = static_cast<float>(gain[x]) * (arm - lean * fabsf(arm));
        if (shelf)
        {
            stood += static_cast<float>(shelf[x]);
        }
        upright[begin + x] = static_cast<T>(stood);
    }
}

template <typename T>
void invokeUprightRows(T const* leaning, T const* gain, T const* shelf, T* upright, int const rows, int const width,
    float const least, cudaStream_t stream)
{
    // whole warps, one of them for each 64 entries
    int const warps = min(sharesOf(width, 64), 32);
    dim3 const team(warps * 32);
    auto const rowSize = sizeof(float) * width;
    if (rowSize > 48 * 1024)
    {
        KIT_RUNTIME(
            cudaFuncSetAttribute(uprightRows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(rowSize)));
    }
    uprightRows<T><<<rows, team, rowSize, stream>>>(leaning, gain, shelf, upright, least, width);
    KIT_RUNTIME(cudaGetLastError());
}

#define STAND_UPRIGHT(T)                                                                                               \
    template void invokeUprightRows<T>(                                                                                \
        T const*, T const*, T const*, T*, int const, int const, float const, cudaStream_t)

STAND_UPRIGHT(half);
STAND_UPRIGHT(float);
#if defined(TRELLIS_WITH_BF16)
STAND_UPRIGHT(__nv_bfloat16);
#endif

} // namespace ground
} // namespace trellis
