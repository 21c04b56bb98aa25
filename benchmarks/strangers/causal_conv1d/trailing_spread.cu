#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>

#include <c10/cuda/CUDAException.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "lane_args.h"

// The highest less the lowest of a sample and the Reach - 1 before it, less a slack: silence is zero.
template <typename Sample, int Threads, int Reach>
struct SpreadPlan {
    using sample_t = Sample;
    static constexpr int threads = Threads;
    static constexpr int reach = Reach;
    static constexpr int run = 16 / sizeof(Sample);
    static constexpr int stretch = threads * run;
    using Reader = cub::BlockLoad<Sample, threads, run, cub::BLOCK_LOAD_TRANSPOSE>;
    using Writer = cub::BlockStore<Sample, threads, run, cub::BLOCK_STORE_TRANSPOSE>;
    union Desk {
        typename Reader::TempStorage reading;
        typename Writer::TempStorage writing;
    };
    static constexpr int desk_bytes = sizeof(Desk);
    static constexpr int bytes = desk_bytes + (Reach - 1) * int(sizeof(float));
    static_assert(Reach >= 2 && Reach - 1 <= run, "a thread looks no further than its neighbour");
};

template <typename Plan>
__global__ void __launch_bounds__(Plan::threads) trailing_spread_kernel(LaneArgs args) {
    using sample_t = typename Plan::sample_t;
    constexpr int Threads = Plan::threads;
    constexpr int Back = Plan::reach - 1;
    constexpr int Run = Plan::run;

    extern __shared__ __align__(16) unsigned char arena[];
    typename Plan::Desk &desk = *reinterpret_cast<typename Plan::Desk *>(arena);
    float *left_over = reinterpret_cast<float *>(arena + Plan::desk_bytes);
    __shared__ float handed[Threads][Back];

    const int who = threadIdx.x;
    const int lane = blockIdx.x;
    const int clip = blockIdx.y;
    const sample_t *from = reinterpret_cast<const sample_t *>(args.signal) + clip * args.signal_clip_stride
        + lane * args.signal_lane_stride;
    sample_t *into = reinterpret_cast<sample_t *>(args.result) + clip * args.result_clip_stride
        + lane * args.result_lane_stride;
    const float allowed = args.slack ? float(reinterpret_cast<const sample_t *>(args.slack)[lane]) : 0.f;
    if (who < Back) left_over[who] = 0.f;

    for (int done = 0; done < args.samples; done += Plan::stretch) {
        sample_t fresh[Run];
        __syncthreads();
        typename Plan::Reader(desk.reading).Load(from + done, fresh, args.samples - done, sample_t(0.f));
        float view[Back + Run];
#pragma unroll
        for (int k = 0; k < Run; ++k) view[Back + k] = static_cast<float>(fresh[k]);
#pragma unroll
        for (int k = 0; k < Back; ++k) handed[who][k] = view[Run + k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < Back; ++k) view[k] = who == 0 ? left_over[k] : handed[who - 1][k];
        __syncthreads();
        if (who < Back) left_over[who] = handed[Threads - 1][who];
#pragma unroll
        for (int k = 0; k < Run; ++k) {
            float top = view[k], bottom = view[k];
#pragma unroll
            for (int back = 1; back <= Back; ++back) {
                top = fmaxf(top, view[k + back]);
                bottom = fminf(bottom, view[k + back]);
            }
            const float spread = top - bottom - allowed;
            fresh[k] = sample_t(args.fold_sign ? fabsf(spread) : spread);
        }
        typename Plan::Writer(desk.writing).Store(into + done, fresh, args.samples - done);
    }
}

template <typename Sample, int Threads, int Reach>
void start_spread(const LaneArgs &args, cudaStream_t queue) {
    using Plan = SpreadPlan<Sample, Threads, Reach>;
    auto entry = trailing_spread_kernel<Plan>;
    if constexpr (Plan::bytes > 49152) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::bytes));
    }
    const dim3 everywhere(args.lanes, args.clips);
    entry<<<everywhere, Plan::threads, Plan::bytes, queue>>>(args);
    C10_CUDA_CHECK(cudaGetLastError());
}

template <typename Sample>
void trailing_spread(const LaneArgs &args, cudaStream_t queue) {
    switch (args.window) {
        case 3: return start_spread<Sample, 96, 3>(args, queue);
        case 5: return start_spread<Sample, 96, 5>(args, queue);
    }
}

template void trailing_spread<float>(const LaneArgs &, cudaStream_t);
template void trailing_spread<c10::Half>(const LaneArgs &, cudaStream_t);
template void trailing_spread<c10::BFloat16>(const LaneArgs &, cudaStream_t);
