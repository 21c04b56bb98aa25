#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "flag_split.h"

// The highest of a warp's lanes up to each, where a lane's height sinks by `per_lane` for each lane it is carried.
__device__ __forceinline__ float sink_up_to(float height, float per_lane, int lane) {
#pragma unroll
    for (int far = 1; far <= 16; far <<= 1) {
        const float below = __shfl_up_sync(~0u, height, far) - per_lane * far;
        height = lane < far ? height : fmaxf(height, below);
    }
    return height;
}

// peak[t] = max(level[t], peak[t - 1] - leak[row]): Run samples a thread, a row a block.
template <bool Capped, int Warps, int Run>
__global__ void leaking_peak_kernel(const float *__restrict__ level, const float *__restrict__ leak,
                                    const float *__restrict__ cap, float *__restrict__ peak, const int length) {
    __shared__ float warp_peak[Warps];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float drop = leak[blockIdx.x];
    const float *in_row = level + size_t(blockIdx.x) * length;
    float *out_row = peak + size_t(blockIdx.x) * length;

    float running = -INFINITY;  // the peak at the end of what is behind us
    for (int begin = 0; begin < length; begin += Warps * 32 * Run) {
        const int first = begin + threadIdx.x * Run;
        float local[Run];
        float height = -INFINITY;
#pragma unroll
        for (int k = 0; k < Run; ++k) {
            const float sample = first + k < length ? in_row[first + k] : -INFINITY;
            height = fmaxf(sample, height - drop);
            local[k] = height;
        }
        height = sink_up_to(height, drop * Run, lane);
        if (lane == 31) warp_peak[warp] = height;
        __syncthreads();
        float before = running;
        for (int w = 0; w < Warps; ++w) {
            if (w == warp) {
                const float neighbour = __shfl_up_sync(~0u, height, 1);
                const float sunk = before - drop * (lane * Run);
                height = lane > 0 ? fmaxf(neighbour, sunk) : before;
            }
            before = fmaxf(warp_peak[w], before - drop * (32 * Run));
        }
        running = before;
#pragma unroll
        for (int k = 0; k < Run; ++k) {
            if (first + k >= length) break;
            const float held = fmaxf(local[k], height - drop * (k + 1));
            out_row[first + k] = Capped ? fminf(held, cap[first + k]) : held;
        }
        __syncthreads();
    }
}

void leaking_peak(at::Tensor &peak, const at::Tensor &level, const at::Tensor &leak, const std::optional<at::Tensor> &cap) {
    TORCH_CHECK(level.is_contiguous() && peak.is_contiguous(), "rows have to lie one behind the other");
    const int length = level.size(1);
    const int rows = level.size(0);
    SPLIT_BY_FLAG(cap.has_value(), Capped,
        constexpr int Warps = 3;
        const float *ceiling = Capped ? cap->data_ptr<float>() : nullptr;
        leaking_peak_kernel<Capped, Warps, 4><<<rows, Warps * 32, 0, c10::cuda::getCurrentCUDAStream()>>>(
            level.data_ptr<float>(), leak.data_ptr<float>(), ceiling, peak.data_ptr<float>(), length);
    );
    C10_CUDA_CHECK(cudaGetLastError());
}

TORCH_LIBRARY_FRAGMENT(lanes, library) { library.def("leaking_peak", &leaking_peak); }
