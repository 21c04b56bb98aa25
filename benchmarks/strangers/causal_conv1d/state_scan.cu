#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <torch/extension.h>

#include "static_switch.h"

// h = a * h + b * x along a sequence, in chunks of kItems a thread, joined through warps.
template <int kNThreads, int kItems, bool kHasGate>
__global__ void state_scan_kernel(const float *__restrict__ a, const float *__restrict__ x, const float *__restrict__ gate,
                                  float *__restrict__ h, const int seqlen) {
    __shared__ float2 warp_total[kNThreads / 32];
    const int64_t row = (int64_t)blockIdx.x * seqlen;
    float carry = 0.f;
    for (int start = 0; start < seqlen; start += kNThreads * kItems) {
        float av[kItems], xv[kItems];
        float2 mine = make_float2(1.f, 0.f);
        #pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const int t = start + threadIdx.x * kItems + i;
            av[i] = t < seqlen ? a[row + t] : 1.f;
            xv[i] = t < seqlen ? x[row + t] : 0.f;
            mine = make_float2(mine.x * av[i], mine.y * av[i] + xv[i]);
        }
        float2 upto = mine;
        #pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) {
            const float pa = __shfl_up_sync(0xffffffff, upto.x, offset);
            const float px = __shfl_up_sync(0xffffffff, upto.y, offset);
            if (threadIdx.x % 32 >= offset) upto = make_float2(pa * upto.x, px * upto.x + upto.y);
        }
        if (threadIdx.x % 32 == 31) warp_total[threadIdx.x / 32] = upto;
        __syncthreads();
        float state = carry;
        for (int w = 0; w < threadIdx.x / 32; ++w) state = state * warp_total[w].x + warp_total[w].y;
        const float ba = __shfl_up_sync(0xffffffff, upto.x, 1);
        const float bx = __shfl_up_sync(0xffffffff, upto.y, 1);
        if (threadIdx.x % 32 > 0) state = state * ba + bx;
        for (int i = 0; i < kItems; ++i) {
            const int t = start + threadIdx.x * kItems + i;
            state = state * av[i] + xv[i];
            if (t < seqlen) h[row + t] = kHasGate ? state * gate[row + t] : state;
        }
        for (int w = 0; w < kNThreads / 32; ++w) carry = carry * warp_total[w].x + warp_total[w].y;
        __syncthreads();
    }
}

void state_scan(const at::Tensor &a, const at::Tensor &x, const c10::optional<at::Tensor> &gate, at::Tensor &h) {
    TORCH_CHECK(x.is_contiguous());
    const int seqlen = x.size(-1);
    const int rows = x.numel() / seqlen;
    auto stream = at::cuda::getCurrentCUDAStream().stream();
    BOOL_SWITCH(gate.has_value(), kHasGate, [&] {
        constexpr int kNThreads = 64;
        constexpr int kItems = 4;
        state_scan_kernel<kNThreads, kItems, kHasGate><<<rows, kNThreads, 0, stream>>>(
            a.data_ptr<float>(), x.data_ptr<float>(), kHasGate ? gate.value().data_ptr<float>() : nullptr,
            h.data_ptr<float>(), seqlen);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("state_scan", &state_scan, "scan"); }
