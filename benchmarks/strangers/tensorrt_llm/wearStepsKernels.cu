#include "launchKit.h"

namespace trellis
{
namespace ground
{

// A staircase whose steps have worn round: flat where a step was, steepest where its edge was.
template <typename Cell>
struct WornStairs
{
    __device__ static float at(float height)
    {
        float const tread = floorf(height);
        float const rise = height - tread;
        return tread + rise * rise * (3.f - rise - rise);
    }
};

// Up to one and down again, whichever way it goes from nought.
template <typename Cell>
struct PingPong
{
    __device__ static float at(float height)
    {
        return fabsf(height - 2.f * rintf(0.5f * height));
    }
};

template <template <typename> class Relief, typename Cell>
__global__ void wearSteps(Cell* heights, Cell const* __restrict__ sinking, int columns, int cells)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    int const stride = gridDim.x * blockDim.x;
    for (int cell = threadIdx.x + blockIdx.x * blockDim.x; cell < cells; cell += stride)
    {
        float const sunk = float(heights[cell]) - float(sinking[cell % columns]);
        heights[cell] = Cell(Relief<Cell>::at(sunk));
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

template <template <typename> class Relief, typename Cell>
void invokeWearSteps(Cell* heights, Cell const* sinking, int const rows, int const columns, cudaStream_t stream)
{
    constexpr int kTeam = 160;
    constexpr int kCellsEach = 3;
    int const cells = rows * columns;

    cudaLaunchAttribute overlap{};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = kit::overlapWanted() ? 1 : 0;

    cudaLaunchConfig_t how{};
    how.stream = stream;
    how.blockDim = kTeam;
    how.gridDim = kit::sharesOf(cells, kTeam * kCellsEach);
    how.attrs = &overlap;
    how.numAttrs = 1;
    KIT_RUNTIME(cudaLaunchKernelEx(&how, wearSteps<Relief, Cell>, heights, sinking, columns, cells));
}

#define WEAR_FOR(RELIEF, CELL)                                                                                         \
    template void invokeWearSteps<RELIEF, CELL>(CELL*, CELL const*, int const, int const, cudaStream_t)

WEAR_FOR(WornStairs, half);
WEAR_FOR(WornStairs, float);
WEAR_FOR(PingPong, half);
WEAR_FOR(PingPong, float);
#undef WEAR_FOR

} // namespace ground
} // namespace trellis
