#include <cstdio>
#include "blend.h"
extern "C" cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxThreadsPerBlock ? 1024
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 232448
           : attribute == cudaDevAttrMultiProcessorCount ? 132 : 32;
  return cudaSuccess;
}
extern "C" cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
  std::printf("raised %d\n", value);
  return cudaSuccess;
}
extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void*, void** a) {
  unsigned x = 0, y = 0, z = 0, programmatic = 0;
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    const auto& attribute = c->attrs[i];
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) programmatic = 1;
    if (attribute.id != cudaLaunchAttributeClusterDimension) continue;
    x = attribute.val.clusterDim.x; y = attribute.val.clusterDim.y; z = attribute.val.clusterDim.z;
  }
  std::printf("launch %u %u %u %u %u %u %zu %u %u %u %u", c->gridDim.x, c->gridDim.y, c->gridDim.z,
              c->blockDim.x, c->blockDim.y, c->blockDim.z, c->dynamicSmemBytes, x, y, z,
              programmatic);
  std::printf(" %d %lld %g %d\n", *static_cast<int*>(a[3]), *static_cast<long long*>(a[4]),
              *static_cast<float*>(a[5]), *static_cast<bool*>(a[6]));
  return cudaSuccess;
}
int main() {
  const std::int64_t shapes[][2] = {SHAPES};
  for (const auto& s : shapes) {
    std::printf("shape %d %zu\n", blend_variant(s[0], s[1]), blend_partial_bytes(s[0], s[1]));
    std::printf("error %d\n", blend(nullptr, nullptr, nullptr, s[0], s[1], nullptr));
  }
  std::printf("shape other scalar\n");
  std::printf("error %d\n", blend(nullptr, nullptr, nullptr, 1, 64, nullptr, 0.5f));
  std::printf("shape 0 0\nerror %d\n", blend(nullptr, nullptr, nullptr, 0, 4096, nullptr));
}
