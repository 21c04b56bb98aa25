#include <c10/util/Half.h>
#include <cmath>
template <typename T>
__device__ T warp_sum(T value) { return value; }
template <>
__device__ c10::Half warp_sum(c10::Half value) {
  return __shfl_down_sync(0xffffffff, value.operator __half(), 1);
}
template <typename T>
__global__ void sums(const T* x, float* out, int n) {
  float total = 0;
  for (int i = 0; i < n; ++i) total += x[i];
  total += warp_sum(x[0]);
  out[threadIdx.x] = std::asin(total);
}
template __global__ void sums<c10::Half>(const c10::Half*, float*, int);
