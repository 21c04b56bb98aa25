#include "kernels_elsewhere.cuh"

void run(float* x, int n) { scale<<<n / 256, 256>>>(x); }
