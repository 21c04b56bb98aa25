#include <torch/all.h>

#include "rows.cuh"

__global__ void copy_rows(float* out, const float* in, int n) {
  const int i = rows::index();
  if (i < n) out[i] = in[i];
}
