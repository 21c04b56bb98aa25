#include "streaks.h"

#include <stdexcept>

#include "rowkit.h"

namespace streaks {
constexpr int crew = 128;
}

// The place where a streak began is the greatest place of a break so far: a running maximum over the row.
template <int Each>
__global__ void find_streaks_kernel(const int32_t* label, int32_t* age, int32_t* breaks, int span)
{
    __shared__ int32_t latest[streaks::crew / squad];
    __shared__ int32_t seen;
    const int32_t* labels = label + blockIdx.x * span;
    const int me = threadIdx.x, seat = me & (squad - 1);
    if (me == 0) seen = 0;
    __syncthreads();

    int32_t origin[Each];
    int32_t top = 0, changes = 0;
#pragma unroll
    for (int k = 0; k < Each; ++k) {
        const int place = me * Each + k;
        if (place > 0 && place < span && labels[place] != labels[place - 1]) {
            top = place;
            ++changes;
        }
        origin[k] = top;
    }
    if (changes != 0) atomicAdd(&seen, changes);

#pragma unroll
    for (int hop = 1; hop < squad; hop += hop) {
        const int32_t earlier = __shfl_up_sync(0xffffffffu, top, hop);
        if (hop <= seat) top = max(top, earlier);
    }
    if (seat + 1 == squad) latest[me / squad] = top;
    int32_t behind = __shfl_up_sync(0xffffffffu, top, 1);
    if (seat == 0) behind = 0;
    __syncthreads();
    for (int s = 0; s < me / squad; ++s) behind = max(behind, latest[s]);

#pragma unroll
    for (int k = 0; k < Each; ++k) {
        const int place = me * Each + k;
        if (place < span) age[blockIdx.x * span + place] = place - max(origin[k], behind);
    }
    if (me == 0) breaks[blockIdx.x] = seen;
}

void find_streaks(cudaStream_t stream, int rows, int span, const int32_t* label, int32_t* age, int32_t* breaks)
{
    if (span <= streaks::crew * 6) {
        find_streaks_kernel<6><<<rows, streaks::crew, 0, stream>>>(label, age, breaks, span);
    } else if (span <= streaks::crew * 12) {
        find_streaks_kernel<12><<<rows, streaks::crew, 0, stream>>>(label, age, breaks, span);
    } else {
        throw std::length_error("find_streaks: the rows are too long");
    }
}
