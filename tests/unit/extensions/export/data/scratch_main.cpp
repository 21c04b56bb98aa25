#include <cstdio>
#include "weighted_sum.h"
extern "C" cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1024;
  return cudaSuccess;
}
extern "C" cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void*, void** a) {
  std::printf("%u,%u", c->gridDim.x, c->gridDim.y);
  const int arrays = c->gridDim.y > 1 ? 5 : 2;
  for (int i = 0; i < arrays; ++i) std::printf(" %p", *static_cast<void**>(a[i]));
  std::printf(" %d\n", *static_cast<int*>(a[arrays]));
  return cudaSuccess;
}
int main() {
  const auto at = [](long place) { return reinterpret_cast<float*>(place); };
  std::printf("%d %zu\n", weighted_sum_variant(24, 4096), weighted_sum_partial_bytes(24, 4096));
  return weighted_sum(at(1), at(2), at(3), at(4), nullptr, 24, 4096, nullptr);
}
