#pragma once

#include "ggml.h"
#include "ggml-cuda.h"

#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_bf16.h>

#define WARP_SIZE 32

#define GGML_UNUSED(x) (void)(x)

struct ggml_backend_cuda_context {
    int device;
    cudaStream_t streams[8];
    cudaStream_t stream() { return streams[device]; }
};

template<int width = WARP_SIZE>
static __device__ __forceinline__ float warp_reduce_sum(float x) {
#pragma unroll
    for (int offset = width/2; offset > 0; offset >>= 1) {
        x += __shfl_xor_sync(0xffffffff, x, offset, width);
    }
    return x;
}
