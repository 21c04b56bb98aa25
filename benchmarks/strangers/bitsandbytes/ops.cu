#include "kernels.cuh"
#include "ops.cuh"

template <typename T>
void unpackBlockwise4(unsigned char* A, float* absmax, T* out, int blocksize, const int n, cudaStream_t stream) {
    constexpr int tile_size = 512;
    int grid_blocks = (n + tile_size - 1) / tile_size;
    kUnpackBlockwise4<T, tile_size><<<grid_blocks, 64, 0, stream>>>(A, absmax, out, blocksize, n);
    CUDA_CHECK_RETURN(cudaPeekAtLastError());
}

template <typename T, int OPTIMIZER>
void momentumStep(T* g, T* p, float* state1, float beta1, float weight_decay, int step, float lr, const int n) {
    int num_blocks = n / 4096;
    num_blocks = n % 4096 == 0 ? num_blocks : num_blocks + 1;
    kMomentumStep<T, OPTIMIZER><<<num_blocks, 1024>>>(g, p, state1, beta1, weight_decay, step, lr, n);
    CUDA_CHECK_RETURN(cudaPeekAtLastError());
}

template <typename T>
void quantizeRowwise8bit(T* A, signed char* out, float* rowStats, int rows, int cols, cudaStream_t stream) {
    kQuantizeRowwise8bit<T, 256><<<rows, 256, 0, stream>>>(A, out, rowStats, rows, cols);
    CUDA_CHECK_RETURN(cudaPeekAtLastError());
}

template void unpackBlockwise4<float>(
    unsigned char* A, float* absmax, float* out, int blocksize, const int n, cudaStream_t stream);
template void unpackBlockwise4<half>(
    unsigned char* A, float* absmax, half* out, int blocksize, const int n, cudaStream_t stream);
template void unpackBlockwise4<__nv_bfloat16>(
    unsigned char* A, float* absmax, __nv_bfloat16* out, int blocksize, const int n, cudaStream_t stream);

#define MAKE_momentum(name, gtype)                                                                                   \
    template void momentumStep<gtype, name>(                                                                         \
        gtype * g, gtype * p, float* state1, float beta1, float weight_decay, int step, float lr, const int n);

MAKE_momentum(MOMENTUM, half)
MAKE_momentum(MOMENTUM, float)
MAKE_momentum(LION, half)
MAKE_momentum(LION, float)

template void quantizeRowwise8bit<half>(
    half* A, signed char* out, float* rowStats, int rows, int cols, cudaStream_t stream);
