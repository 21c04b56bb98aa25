#pragma once

#include "ggml.h"

#include <cstdint>
#include <cstring>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define LANES 32
#define ROUNDS(work, crew) (((work) + (crew) - 1) / (crew))

struct workbench {
    int          gpu = 0;
    cudaStream_t belts[4] = {};

    cudaStream_t belt() const { return belts[gpu]; }
};

// Every lane gets both sums of its group of lanes.
template <int group = LANES>
static __device__ __forceinline__ float2 sum_both(float2 both) {
#pragma unroll
    for (int away = 1; away < group; away *= 2) {
        both.x += __shfl_xor_sync(0xffffffffu, both.x, away, group);
        both.y += __shfl_xor_sync(0xffffffffu, both.y, away, group);
    }
    return both;
}
