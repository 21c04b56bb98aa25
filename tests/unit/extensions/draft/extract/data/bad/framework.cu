#include <torch/all.h>
#include <cutlass/numeric_conversion.h>

__global__ void narrow(float* out, const float* in, int n) {
  cutlass::NumericConverter<float, float> convert;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = convert(in[i]);
}
