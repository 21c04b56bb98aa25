// out[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * w in float32: a work-group of 256 a row.
__kernel void rmsnorm(__global float* out, __global const float* x, __global const float* w,
                      float eps, int T, int H) {
  __local float partial[256];
  const int item = get_local_id(0);
  __global const float* row = x + get_group_id(0) * (size_t)H;
  __global float* result = out + get_group_id(0) * (size_t)H;
  float sum = 0.0f;
  for (int i = item; i < H; i += 256) sum += row[i] * row[i];
  partial[item] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_size = 128; half_size > 0; half_size /= 2) {
    if (item < half_size) partial[item] += partial[item + half_size];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float scale = 1.0f / sqrt(partial[0] / H + eps);
  for (int i = item; i < H; i += 256) result[i] = row[i] * scale * w[i];
}
