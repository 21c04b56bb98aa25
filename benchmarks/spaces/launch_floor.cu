// Writes one number: what remains is the cost of a launch.
extern "C" __global__ void launch_floor(float* out) {
  if (threadIdx.x == 0) out[0] = 1.0f;
}
