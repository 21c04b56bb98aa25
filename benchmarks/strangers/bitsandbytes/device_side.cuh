#ifndef DEVICE_SIDE_CUH
#define DEVICE_SIDE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T, int TILE>
__global__ void kSpreadSextets(
    const unsigned char* triples, const float* pitch, T* tones, const int count, const int span
);

template <typename T, int TEMPER>
__global__ void kTemperedPull(
    T* place, T* pull, float* heat, const float rate, const float cooling, const float leak, const int round,
    const int count
);

template <typename T, int THREADS>
__global__ void kFiveCalls(const T* rows, float* typical, signed char* calls, int width);

#endif
