#ifndef ops_H
#define ops_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "common.cuh"

#define CUDA_CHECK_RETURN(value)                                                                     \
    {                                                                                                \
        cudaError_t _m_cudaStat = value;                                                             \
        if (_m_cudaStat != cudaSuccess) {                                                            \
            fprintf(stderr, "Error %s at line %d in file %s\n", cudaGetErrorString(_m_cudaStat),     \
                    __LINE__, __FILE__);                                                             \
            exit(1);                                                                                 \
        }                                                                                            \
    }

template <typename T>
void unpackBlockwise4(unsigned char* A, float* absmax, T* out, int blocksize, const int n, cudaStream_t stream);
template <typename T, int OPTIMIZER>
void momentumStep(T* g, T* p, float* state1, float beta1, float weight_decay, int step, float lr, const int n);
template <typename T>
void quantizeRowwise8bit(T* A, signed char* out, float* rowStats, int rows, int cols, cudaStream_t stream);

#endif
