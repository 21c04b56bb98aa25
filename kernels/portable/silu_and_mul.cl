// out[t, i] = silu(input[t, i]) * input[t, D + i] in float32: a work-item an element.
__kernel void silu_and_mul(__global float* out, __global const float* input, int T, int D) {
  const size_t index = get_global_id(0);
  if (index >= (size_t)T * D) return;
  const size_t row = index / D;
  const float gate = input[index + row * D];
  const float up = input[index + row * D + D];
  out[index] = gate / (1.0f + exp(-gate)) * up;
}
