// out[t, i] = silu(input[t, i]) * input[t, D + i] in float32: a thread an element.
extern "C" __global__ void silu_and_mul(float* out, const float* input, int T, int D) {
  const long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= static_cast<long long>(T) * D) return;
  const long long row = index / D;
  const float gate = input[index + row * D];
  const float up = input[index + row * D + D];
  out[index] = gate / (1.0f + expf(-gate)) * up;
}
