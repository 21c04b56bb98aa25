#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <torch/all.h>

#include "guards.h"

// As many elements as one load of 16 bytes brings.
template <typename T, int kWide>
struct alignas(kWide * sizeof(T)) Tuft {
  T hair[kWide];

  __device__ Tuft combed_back() const {
    Tuft back;
#pragma unroll
    for (int h = 0; h < kWide; ++h) back.hair[h] = hair[kWide - 1 - h];
    return back;
  }
};

// Tufts of two rows by turns: those of the under row come reversed.
template <typename T, int kWide, bool kOverlap>
__global__ void braid_rows_kernel(
    const T* __restrict__ fleece,
    const int32_t* __restrict__ over,
    const int32_t* __restrict__ under,
    T* __restrict__ braids,
    const uint32_t tufts) {
  using tuft_t = Tuft<T, kWide>;
#if __CUDA_ARCH__ >= 900
  if constexpr (kOverlap) cudaGridDependencySynchronize();
#endif
  const size_t braid = blockIdx.x;
  const tuft_t* first = reinterpret_cast<const tuft_t*>(fleece) + size_t(over[braid]) * tufts;
  const tuft_t* second = reinterpret_cast<const tuft_t*>(fleece) + size_t(under[braid]) * tufts;
  tuft_t* plait = reinterpret_cast<tuft_t*>(braids) + braid * tufts;
  for (uint32_t t = threadIdx.x; t < tufts; t += blockDim.x) {
    plait[t] = t % 2 == 0 ? first[t] : second[t].combed_back();
  }
#if __CUDA_ARCH__ >= 900
  if constexpr (kOverlap) cudaTriggerProgrammaticLaunchCompletion();
#endif
}

void braid_rows(at::Tensor fleece, at::Tensor over, at::Tensor under, at::Tensor braids, bool overlap) {
  MUST_LIE_DENSE_ON_GPU(fleece);
  MUST_LIE_DENSE_ON_GPU(braids);
  const uint32_t plaits = over.numel(), length = fleece.size(-1);

  cudaLaunchAttribute serial;
  serial.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  serial.val.programmaticStreamSerializationAllowed = overlap;
  cudaLaunchConfig_t setup{};
  setup.attrs = &serial;
  setup.numAttrs = 1;
  setup.stream = at::cuda::getCurrentCUDAStream();
  setup.blockDim = dim3(96);
  setup.gridDim = dim3(plaits);

  WITH_SHORT_FLOAT(fleece, hair_t, [&] {
    constexpr int kWide = sizeof(uint4) / sizeof(hair_t);
    auto* kernel = overlap ? braid_rows_kernel<hair_t, kWide, true> : braid_rows_kernel<hair_t, kWide, false>;
    C10_CUDA_CHECK(cudaLaunchKernelEx(
        &setup,
        kernel,
        reinterpret_cast<const hair_t*>(fleece.data_ptr()),
        over.data_ptr<int32_t>(),
        under.data_ptr<int32_t>(),
        reinterpret_cast<hair_t*>(braids.data_ptr()),
        length / kWide));
  });
}
