// A kernel of which a copy does about 2 % more: SLOWED=1. `work` decides what limits it: at 1 it
// streams memory, else it is a chain of that many dependent multiply-adds.

#ifndef SLOWED
#define SLOWED 0
#endif

extern "C" __global__ void same_kernel(float* out, const float* input, int count, int work) {
  const int stride = gridDim.x * blockDim.x;
  const int first = blockIdx.x * blockDim.x + threadIdx.x;
  if (work > 1) {
    const int steps = SLOWED ? work + work / 50 : work;
    for (int i = first; i < count; i += stride) {
      float value = input[i];
      for (int step = 0; step < steps; ++step) value = fmaf(value, 0.5f, 0.25f);
      // The chain ends at 0.5 whatever it began with: only its length takes time.
      out[i] = 2.0f * input[i] + (value - 0.5f) * 1e-30f;
    }
    return;
  }
  float unused = 0.0f;
  // Reading 4 % more of the input is 2 % more traffic: as much is written as is read.
  const int all = SLOWED ? count + count / 25 : count;
  for (int i = first; i < all; i += stride) {
    const float value = input[i];
    if (i < count) {
      out[i] = 2.0f * value;
    } else {
      unused += value;
    }
  }
  if (unused == 1.2345e30f) out[0] = unused;
}
