#include <cooperative_groups.h>
#include <cub/block/block_reduce.cuh>
#include <cuda/std/array>

template <int threads> __global__ void sum(float* to, const float* from) {
    using Reduce = cub::BlockReduce<float, threads>;
    __shared__ typename Reduce::TempStorage storage;
    cuda::std::array<float, 2> pair{from[threadIdx.x], from[threadIdx.x + threads]};
    const float total = Reduce(storage).Sum(pair[0] + pair[1]);
    if (cooperative_groups::this_thread_block().thread_rank() == 0) *to = total;
}
