#include "device_side.cuh"
#include "tempers.cuh"

#include <cub/block/block_reduce.cuh>

#if defined(CUB_VERSION) && CUB_VERSION < 200800
#define JOIN_BY_ADDING cub::Sum()
#else
#include <cuda/std/functional>
#define JOIN_BY_ADDING cuda::std::plus<>{}
#endif

// Calls each entry -2, -1, 0, 1 or 2 by how it compares with the typical size of its row.
template <typename T, int THREADS>
__launch_bounds__(THREADS, STEP_WIDTH * 48 / THREADS) __global__
    void kFiveCalls(const T* rows, float* typical, signed char* calls, int width) {
    typedef cub::BlockReduce<float, THREADS> Census;
    __shared__ typename Census::TempStorage forms;
    __shared__ float size;

    rows += size_t(width) * blockIdx.x;
    calls += size_t(width) * blockIdx.x;
    float own = 0.0f;
    for (int column = threadIdx.x; column < width; column += THREADS)
        own += fabsf(float(rows[column]));
    const float all = Census(forms).Reduce(own, JOIN_BY_ADDING, width < THREADS ? width : THREADS);
    if (threadIdx.x == 0) {
        size = all / width;
        typical[blockIdx.x] = size;
    }
    __syncthreads();

    for (int column = threadIdx.x; column < width; column += THREADS) {
        const float entry = float(rows[column]);
        const int loud = (fabsf(entry) > 0.5f * size) + (fabsf(entry) > 1.5f * size);
        calls[column] = (signed char)(entry < 0.0f ? -loud : loud);
    }
}

template __global__ void kFiveCalls<half, 192>(const half*, float*, signed char*, int);
