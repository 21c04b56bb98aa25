#include <cuda.h>
constexpr int TILE_N = 64;
__global__ void copy_rows(unsigned short* out, int N, int K,
                          const __grid_constant__ CUtensorMap wmap) {
  __shared__ alignas(1024) unsigned short tile[TILE_N * 64];
  load_2d(tile, wmap, 0, blockIdx.x * TILE_N);
  for (int i = threadIdx.x; i < TILE_N * 64; i += blockDim.x)
    out[(blockIdx.x * TILE_N + i / 64) * K + i % 64] = tile[i];
}
void launch(unsigned short* out, void* w, int n, int k, cudaStream_t stream) {
  CUtensorMap map;
  cuuint64_t sizes[2] = {(cuuint64_t)k, (cuuint64_t)n};
  cuuint64_t strides[1] = {k * sizeof(short)};
  cuuint32_t box[2] = {64, TILE_N}, steps[2] = {1, 1};
  cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, w, sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  copy_rows<<<(n + TILE_N - 1) / TILE_N, 256, 0, stream>>>(out, n, k, map);
}
