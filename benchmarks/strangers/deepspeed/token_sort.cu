#include <cassert>

#include "ds_kernel_utils.h"
#include "token_sort.h"

namespace td_sort {
constexpr int threads = 1024;
}

// Rank of each kept token among the kept of its row, and how many there are.
template <int VALS_PER_THREAD>
__global__ void token_rank(const int32_t* data, int32_t* ranks, int32_t* counts, int row_len)
{
    __shared__ int32_t warp_sums[td_sort::threads / hw_warp_size];
    const int base = blockIdx.x * row_len;
    const int lane = threadIdx.x % hw_warp_size;
    const int warp = threadIdx.x / hw_warp_size;

    int32_t kept = 0;
    int32_t local[VALS_PER_THREAD];
#pragma unroll
    for (int i = 0; i < VALS_PER_THREAD; i++) {
        const int at = threadIdx.x * VALS_PER_THREAD + i;
        local[i] = at < row_len ? data[base + at] != 0 : 0;
        kept += local[i];
    }
    int32_t upto = kept;
#pragma unroll
    for (int offset = 1; offset < hw_warp_size; offset *= 2) {
        const int32_t other = __shfl_up_sync(0xffffffff, upto, offset);
        if (lane >= offset) upto += other;
    }
    if (lane == hw_warp_size - 1) warp_sums[warp] = upto;
    __syncthreads();
    int32_t before = upto - kept;
    for (int w = 0; w < warp; w++) before += warp_sums[w];
#pragma unroll
    for (int i = 0; i < VALS_PER_THREAD; i++) {
        const int at = threadIdx.x * VALS_PER_THREAD + i;
        if (at < row_len) ranks[base + at] = local[i] ? before : -1;
        before += local[i];
    }
    if (threadIdx.x == blockDim.x - 1) counts[blockIdx.x] = before;
}

void launch_token_rank(const int32_t* data, int32_t* ranks, int32_t* counts, int rows, int row_len,
                       cudaStream_t stream)
{
    // Each thread takes several tokens of a row
    const int vals_per_thread = (row_len + td_sort::threads - 1) / td_sort::threads;
    const int threads = 256;
    assert(row_len <= 4 * threads);
    dim3 grid(rows);
    dim3 block(threads);

    if (vals_per_thread <= 1)
        token_rank<4><<<grid, block, 0, stream>>>(data, ranks, counts, row_len);
    else
        token_rank<8><<<grid, block, 0, stream>>>(data, ranks, counts, row_len);
}
