#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <float.h>

#ifndef kernels
#define kernels

template <typename T, int TILE_SIZE>
__global__ void kUnpackBlockwise4(unsigned char* A, float* absmax, T* out, const int blocksize, const int n);

template <typename T, int OPTIMIZER>
__global__ void kMomentumStep(T* g, T* p, float* state1, const float beta1, const float weight_decay, const int step,
                              const float lr, const int n);

template <typename T, int BLOCK_SIZE>
__global__ void kQuantizeRowwise8bit(T* __restrict__ A, signed char* out, float* rowStats, int rows, int cols);

#endif
