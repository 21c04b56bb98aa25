#pragma OPENCL EXTENSION cl_khr_fp16 : enable
__kernel void gather(__global float* y, __global float* partial, __global const half* x, int T,
                     int D) {
  const int row = get_group_id(0), item = get_local_id(0);
  float sum = 0.0f;
  for (int i = item; i < D; i += 8) {
    const float value = vload_half(row * D + i, x);
    sum += value * value;
  }
  partial[row * 8 + item] = sum;
}
__kernel void finish(__global float* y, __global float* partial, __global const half* x, int T,
                     int D) {
  for (int row = get_local_id(0); row < T; row += get_local_size(0)) {
    float sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum += partial[row * 8 + i];
    y[row] = sum;
  }
}
