// out[t] = the sum of x[t, :] in float32: a work-group of 256 a row.
__kernel void row_sum(__global float* out, __global const float* x, int T, int K) {
  __local float partial[256];
  const int item = get_local_id(0);
  __global const float* row = x + get_group_id(0) * (size_t)K;
  float sum = 0.0f;
  for (int i = item; i < K; i += 256) sum += row[i];
  partial[item] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_size = 128; half_size > 0; half_size /= 2) {
    if (item < half_size) partial[item] += partial[item + half_size];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (item == 0) out[get_group_id(0)] = partial[0];
}
