// One step of a 7-point stencil in three dimensions: out = center * in + side * (the six
// neighbours), with zeros outside. fp32; a thread has one point.
extern "C" __global__ void stencil_3d(float* out, const float* in, float center, float side, int Z,
                                      int Y, int X) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  const int z = blockIdx.z;
  if (x >= X || y >= Y) return;
  const size_t plane = static_cast<size_t>(Y) * X;
  const float* here = in + z * plane + static_cast<size_t>(y) * X + x;
  float sides = 0.0f;
  if (x > 0) sides += here[-1];
  if (x + 1 < X) sides += here[1];
  if (y > 0) sides += *(here - X);
  if (y + 1 < Y) sides += here[X];
  if (z > 0) sides += *(here - plane);
  if (z + 1 < Z) sides += here[plane];
  out[here - in] = center * *here + side * sides;
}
