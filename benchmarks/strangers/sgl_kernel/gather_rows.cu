#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <torch/all.h>

#include "utils.h"

template <typename T, int kVec>
struct alignas(sizeof(T) * kVec) Chunk {
  T lane[kVec];
};

template <typename T, int kVec, bool kPdl>
__global__ void gather_rows_kernel(
    T* __restrict__ dst,
    const T* __restrict__ src,
    const int32_t* __restrict__ rows,
    const uint32_t num_chunks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kPdl) cudaGridDependencySynchronize();
#endif
  using chunk_t = Chunk<T, kVec>;
  const auto* from = reinterpret_cast<const chunk_t*>(src) + static_cast<int64_t>(rows[blockIdx.x]) * num_chunks;
  auto* to = reinterpret_cast<chunk_t*>(dst) + static_cast<int64_t>(blockIdx.x) * num_chunks;
  for (uint32_t i = threadIdx.x; i < num_chunks; i += blockDim.x) to[i] = from[i];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kPdl) cudaTriggerProgrammaticLaunchCompletion();
#endif
}

void gather_rows(at::Tensor dst, at::Tensor src, at::Tensor rows, bool enable_pdl) {
  CHECK_INPUT(src);
  const uint32_t num_rows = rows.size(0);
  const uint32_t width = src.size(1);
  DISPATCH_DTYPE_TO_CTYPE_FP16(src.scalar_type(), scalar_t, [&] {
    constexpr int kVec = 16 / sizeof(scalar_t);
    cudaLaunchConfig_t config{};
    config.gridDim = num_rows;
    config.blockDim = 128;
    config.dynamicSmemBytes = 0;
    config.stream = at::cuda::getCurrentCUDAStream();
    cudaLaunchAttribute attrs[1];
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = enable_pdl;
    config.attrs = attrs;
    config.numAttrs = 1;
    C10_CUDA_CHECK(cudaLaunchKernelEx(
        &config,
        gather_rows_kernel<scalar_t, kVec, false>,
        static_cast<scalar_t*>(dst.data_ptr()),
        static_cast<const scalar_t*>(src.data_ptr()),
        static_cast<const int32_t*>(rows.data_ptr()),
        width / kVec));
    return true;
  });
}
