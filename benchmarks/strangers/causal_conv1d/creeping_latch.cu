#include <torch/python.h>
#include <ATen/cuda/CUDAContext.h>

#include "lane_args.h"

#define EXPECT_DIMS(tensor, ...) \
    TORCH_CHECK((tensor).sizes().equals({__VA_ARGS__}), "creeping_latch: " #tensor " is not (" #__VA_ARGS__ ")")

// Runs a statement with `sample_t` standing for what the tensors hold.
#define WITH_SAMPLE_TYPE(kind, ...)                                      \
    do {                                                                 \
        const at::ScalarType held_kind = (kind);                         \
        if (held_kind == at::kBFloat16) {                                \
            using sample_t = c10::BFloat16;                              \
            __VA_ARGS__                                                  \
        } else if (held_kind == at::kHalf) {                             \
            using sample_t = c10::Half;                                  \
            __VA_ARGS__                                                  \
        } else {                                                         \
            TORCH_CHECK(held_kind == at::kFloat, "no latch over these"); \
            using sample_t = float;                                      \
            __VA_ARGS__                                                  \
        }                                                                \
    } while (0)

// A sample a call. Within the slack what is held creeps towards the sample; beyond it the latch jumps.
template <typename sample_t, int Patience, int Crew>
__global__ void __launch_bounds__(Crew) creeping_latch_kernel(LatchArgs args) {
    const int lane = threadIdx.x + Crew * blockIdx.x;
    const int clip = blockIdx.y;
    if (lane < args.lanes) {
        const sample_t *signal = static_cast<sample_t *>(args.signal);
        const sample_t *slack = static_cast<sample_t *>(args.slack);
        const sample_t *creep = static_cast<sample_t *>(args.creep);
        sample_t *cell = static_cast<sample_t *>(args.memory) + clip * args.memory_clip_stride + lane * args.memory_lane_stride;
        sample_t *result = static_cast<sample_t *>(args.result);

        const float now = float(signal[clip * args.signal_clip_stride + lane * args.signal_lane_stride]);
        const float gap = now - float(cell[0]);
        const float band = slack ? float(slack[lane]) : 0.f;
        const bool jumps = fabsf(gap) > band;
        const float held = jumps ? now : float(cell[0]) + __saturatef(float(creep[lane])) * gap;
        const float age = jumps ? 0.f : fminf(fabsf(float(cell[1])) + 1.f, float(Patience));
        cell[0] = sample_t(held);
        cell[1] = sample_t(age);
        const float told = args.fold_sign ? fabsf(held) : held;
        result[clip * args.result_clip_stride + lane * args.result_lane_stride] = sample_t(told * ((Patience - age) / Patience));
    }
}

template <typename sample_t>
void start_latch(const LatchArgs &args, cudaStream_t queue) {
    constexpr int Crew = 96;
    const unsigned across = (args.lanes + Crew - 1) / Crew;
    creeping_latch_kernel<sample_t, 8, Crew><<<dim3(across, args.clips), Crew, 0, queue>>>(args);
    AT_CUDA_CHECK(cudaGetLastError());
}

at::Tensor creeping_latch(at::Tensor signal, at::Tensor slack, at::Tensor creep, at::Tensor memory, bool fold_sign) {
    at::Tensor result = at::empty_like(signal);
    LatchArgs args = {};
    args.clips = signal.size(0);
    args.lanes = signal.size(1);
    args.samples = 1;
    args.window = 1;
    args.fold_sign = fold_sign;
    EXPECT_DIMS(memory, args.clips, args.lanes, 2);
    EXPECT_DIMS(slack, args.lanes);
    EXPECT_DIMS(creep, args.lanes);

    args.signal = signal.data_ptr();
    args.signal_clip_stride = signal.stride(0);
    args.signal_lane_stride = signal.stride(1);
    args.slack = slack.data_ptr();
    args.creep = creep.data_ptr();
    args.memory = memory.data_ptr();
    args.memory_clip_stride = memory.stride(0);
    args.memory_lane_stride = memory.stride(1);
    args.result = result.data_ptr();
    args.result_clip_stride = result.stride(0);
    args.result_lane_stride = result.stride(1);
    WITH_SAMPLE_TYPE(signal.scalar_type(), start_latch<sample_t>(args, at::cuda::getCurrentCUDAStream()););
    return result;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("creeping_latch", &creeping_latch, "move every latch by one sample");
}
