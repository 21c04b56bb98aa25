#include <ATen/ATen.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/DeviceUtils.cuh>

#include "element_kinds.h"

namespace {

// What a part of a row weighs, and where it would balance.
template <typename Sum>
struct Balance {
  Sum mass, middle;

  __device__ void put(Sum weight, Sum where) { join(weight, where); }

  __device__ void join(Sum other_mass, Sum other_middle) {
    const Sum both = mass + other_mass;
    if (both > Sum(0)) middle += (other_middle - middle) * (other_mass / both);
    mass = both;
  }
};

// Dynamic shared memory may have one type a name.
template <typename Sum>
struct Table;

template <>
struct Table<float> {
  static __device__ float* open() {
    extern __shared__ float float_table[];
    return float_table;
  }
};

// A row a block, or several: each entry grows with how far it lies behind the row's centroid.
template <typename In, typename Sum, typename Out>
__global__ void centroid_tilt(const In* __restrict__ entries, const Out* __restrict__ slope,
                              const Out* __restrict__ offset, const int lines, const int breadth, const Sum least,
                              Out* __restrict__ tilted, Sum* __restrict__ mass, Sum* __restrict__ centroid) {
  Sum* table = Table<Sum>::open();
  const int thread = blockDim.x * threadIdx.y + threadIdx.x;
  const int threads = blockDim.x * blockDim.y;
  for (int line = blockIdx.y; line < lines; line += gridDim.y) {
    const In* from = entries + (size_t)line * breadth;
    Out* into = tilted + (size_t)line * breadth;
    Balance<Sum> part = {Sum(0), Sum(0)};
    for (int i = thread; i < breadth; i += threads) part.put(fabsf(static_cast<Sum>(from[i])), Sum(i));
    for (int apart = 1; apart < 32; apart *= 2) {
      const Sum other_mass = WARP_SHFL_XOR(part.mass, apart);
      const Sum other_middle = WARP_SHFL_XOR(part.middle, apart);
      part.join(other_mass, other_middle);
    }
    if (threadIdx.x == 0) {
      table[threadIdx.y] = part.mass;
      table[blockDim.y + threadIdx.y] = part.middle;
    }
    __syncthreads();
    Balance<Sum> all = {least, Sum(0.5) * (breadth - 1)};
    for (int warp = 0; warp < blockDim.y; ++warp) all.join(table[warp], table[blockDim.y + warp]);
    for (int i = thread; i < breadth; i += threads) {
      const Sum behind = (Sum(i) - all.middle) / breadth;
      const Sum grown = static_cast<Sum>(from[i]) * (Sum(1) + static_cast<Sum>(slope[i]) * behind);
      into[i] = static_cast<Out>(grown + static_cast<Sum>(offset[i]));
    }
    if (thread == 0) {
      mass[line] = all.mass;
      centroid[line] = all.middle;
    }
    __syncthreads();
  }
}

template <typename In, typename Sum, typename Out = In>
void tilt_lines(const In* entries, const Out* slope, const Out* offset, int lines, int breadth, double least,
                Out* tilted, Sum* mass, Sum* centroid) {
  const int limit = at::cuda::getCurrentDeviceProperties()->maxGridSize[1];
  dim3 block(32, 5);
  dim3 grid(1, lines < limit ? lines : limit);
  const size_t table_bytes = 2 * block.y * sizeof(Sum);
  centroid_tilt<In, Sum, Out><<<grid, block, table_bytes, at::cuda::getCurrentCUDAStream()>>>(
      entries, slope, offset, lines, breadth, static_cast<Sum>(least), tilted, mass, centroid);
}

}  // namespace

void centroid_tilt_forward(at::Tensor* tilted, at::Tensor* mass, at::Tensor* centroid, const at::Tensor* entries,
                           const at::Tensor* slope, const at::Tensor* offset, double least) {
  const int breadth = slope->numel();
  const int lines = entries->numel() / breadth;
  BY_ELEMENT_KIND(entries->scalar_type(), in, "centroid_tilt",
                  using sum_t = at::acc_type<kind_in, true>;
                  tilt_lines<kind_in, sum_t>(MEMORY_OF(*entries, kind_in), MEMORY_OF(*slope, kind_in),
                                             MEMORY_OF(*offset, kind_in), lines, breadth, least,
                                             MEMORY_OF(*tilted, kind_in), MEMORY_OF(*mass, sum_t),
                                             MEMORY_OF(*centroid, sum_t));)
  AT_CUDA_CHECK(cudaGetLastError());
}
