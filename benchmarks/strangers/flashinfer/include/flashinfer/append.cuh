#ifndef FLASHINFER_APPEND_CUH_
#define FLASHINFER_APPEND_CUH_

#include "utils.cuh"
#include "vec.cuh"

namespace flashinfer {

/*! A paged cache by its strides; the data is [pages, page_size, heads, head_dim]. */
template <typename DType, typename IdType>
struct cache_view_t {
  DType* k_data;
  IdType* slots;
  uint32_t num_heads;
  uint32_t head_dim;
  __host__ __device__ __forceinline__ size_t offset(IdType slot, uint32_t head) const {
    return (static_cast<size_t>(slot) * num_heads + head) * head_dim;
  }
};

template <uint32_t VEC_SIZE, typename DType, typename IdType>
__global__ void AppendKVKernel(cache_view_t<DType, IdType> cache, DType* __restrict__ append_key,
                               uint32_t nnz) {
  const uint32_t head = threadIdx.y, tx = threadIdx.x;
  for (uint32_t i = blockIdx.x; i < nnz; i += gridDim.x) {
    pack_t<DType, VEC_SIZE> key;
    key.load(append_key + (i * cache.num_heads + head) * cache.head_dim + tx * VEC_SIZE);
    key.store(cache.k_data + cache.offset(cache.slots[i], head) + tx * VEC_SIZE);
  }
}

template <typename DType, typename IdType>
cudaError_t AppendKV(cache_view_t<DType, IdType> cache, DType* append_key, uint32_t nnz,
                     cudaStream_t stream = nullptr) {
  constexpr uint32_t HEAD_DIM = 64;
  constexpr uint32_t vec_size = HEAD_DIM / 32 > 16 / sizeof(DType) ? HEAD_DIM / 32 : 16 / sizeof(DType);
  dim3 nthrs(HEAD_DIM / vec_size, cache.num_heads);
  AppendKVKernel<vec_size, DType, IdType><<<nnz, nthrs, 0, stream>>>(cache, append_key, nnz);
  return cudaGetLastError();
}

}  // namespace flashinfer

#endif  // FLASHINFER_APPEND_CUH_
