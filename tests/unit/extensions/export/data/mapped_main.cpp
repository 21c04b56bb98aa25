#include <cstdio>
#include <cuda.h>
#include "tiled_gemm.h"
extern "C" cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 232448;
  return cudaSuccess;
}
extern "C" cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
static CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* array,
                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                       const cuuint32_t* steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                       CUtensorMapFloatOOBfill fill) {
  std::printf("map %d of %p:", type, array);
  for (unsigned i = 0; i < rank; ++i)
    std::printf(" %d/%u/%d", int(sizes[i]), box[i], i ? int(strides[i - 1]) : int(steps[rank - 1]));
  std::printf(" %d %d%d%d\n", swizzle, l2, interleave, fill);
  map->opaque[0] = rank;
  return CUDA_SUCCESS;
}
extern "C" cudaError_t cudaGetDriverEntryPointByVersion(
    const char*, void** found, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
  *found = reinterpret_cast<void*>(&encode);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void*, void** a) {
  if (c->gridDim.y == 1) return cudaSuccess;
  std::printf("K %d, ranks", *static_cast<int*>(a[0]));
  for (int i = 1; i < 4; ++i)
    std::printf(" %d", int(static_cast<CUtensorMap*>(a[i])->opaque[0]));
  std::printf("\n");
  return cudaSuccess;
}
int main() {
  char at[4] = {};
  std::printf("%d %d\n", tiled_gemm_variant(17, 100, 192), tiled_gemm_variant(17, 100, 193));
  return tiled_gemm(reinterpret_cast<float*>(at), nullptr, nullptr, nullptr, 17, 100, 192, nullptr);
}
