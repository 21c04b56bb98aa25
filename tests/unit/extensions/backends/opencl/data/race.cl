__kernel void run(__global float* y, __global const float* x, int T) {
  __local float staged[128];
  for (int first = 0; first < T; first += 128) {
    const int i = first + get_local_id(0);
    if (i < T) staged[get_local_id(0)] = x[i];
    const int from = get_local_id(0) ^ 64;  // another item's, with no barrier before
    if (first + from < T) y[first + from] = 2.0f * staged[from];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
