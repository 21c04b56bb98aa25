#include "common.cuh"
#include "kernels.cuh"

#include <cub/block/block_load.cuh>
#include <cuda/std/cstdint>

// levels of a code of four bits, from -1 to 1
__device__ __constant__ float kLevels[16] = {
    -1.0f, -0.75f, -0.5f, -0.375f, -0.25f, -0.1875f, -0.125f, 0.0f,
    0.0625f, 0.125f, 0.1875f, 0.25f, 0.375f, 0.5f, 0.75f, 1.0f,
};

__device__ __forceinline__ float dLevel(unsigned char code) { return kLevels[code & 0x0F]; }

template <typename T, int TILE_SIZE>
__global__ void kUnpackBlockwise4(unsigned char* A, float* absmax, T* out, const int blocksize, const int n) {
    const int base_idx = blockIdx.x * TILE_SIZE;
    for (int j = threadIdx.x; j < TILE_SIZE / 2; j += blockDim.x) {
        const int i = base_idx + 2 * j;
        if (i >= n)
            return;
        const float local_abs_max = __ldg(&absmax[i / blocksize]);
        const unsigned char packed = A[i / 2];
        out[i] = dLevel(packed >> 4) * local_abs_max;
        if (i + 1 < n)
            out[i + 1] = dLevel(packed & 0x0F) * local_abs_max;
    }
}

template __global__ void kUnpackBlockwise4<half, 512>(
    unsigned char* A, float* absmax, half* out, const int blocksize, const int n);
template __global__ void kUnpackBlockwise4<float, 512>(
    unsigned char* A, float* absmax, float* out, const int blocksize, const int n);
template __global__ void kUnpackBlockwise4<__nv_bfloat16, 512>(
    unsigned char* A, float* absmax, __nv_bfloat16* out, const int blocksize, const int n);
