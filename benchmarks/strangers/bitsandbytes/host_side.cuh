#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "tempers.cuh"

#define STOP_IF_FAILED(call)                                                                       \
    do {                                                                                           \
        const cudaError_t said = (call);                                                           \
        if (said == cudaSuccess)                                                                   \
            break;                                                                                 \
        std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorName(said));           \
        std::abort();                                                                              \
    } while (false)

template <typename T>
void spreadSextets(
    const unsigned char* triples, const float* pitch, T* tones, const int count, int span, cudaStream_t stream
);
template <typename T, int TEMPER>
void temperedPull(T* place, T* pull, float* heat, float rate, float cooling, float leak, int round, const int count);
template <typename T>
void fiveCalls(const T* rows, float* typical, signed char* calls, int height, int width, cudaStream_t stream);
