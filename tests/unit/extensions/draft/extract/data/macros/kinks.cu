#include <cuda_runtime.h>

#include "kinks.h"

// A pipe with a kink is a name, and how high it is over the ground that it has run.
#define KINKED_PIPE(pipe, height)                                                       \
  __device__ __forceinline__ float pipe##_over(float run) { return height; }            \
  __global__ void pipe##_flow(float* __restrict__ heights, const float* __restrict__ runs, int joints) { \
    const int joint = blockIdx.x * blockDim.x + threadIdx.x;                            \
    if (joint < joints) heights[joint] = pipe##_over(runs[joint]);                      \
  }                                                                                     \
  void pipe(float* heights, const float* runs, int joints, cudaStream_t valve) {        \
    pipe##_flow<<<(joints + 255) / 256, 256, 0, valve>>>(heights, runs, joints);        \
    OR_GIVE_UP();                                                                       \
  }

KINKED_PIPE(gutter, fabsf(run - kKnee) - kKnee)
KINKED_PIPE(chute, run < kKnee ? run : kKnee - run)
