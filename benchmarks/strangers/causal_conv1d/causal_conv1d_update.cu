#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/python.h>

#include "causal_conv1d.h"

#define CHECK_SHAPE(x, ...) TORCH_CHECK(x.sizes() == torch::IntArrayRef({__VA_ARGS__}), #x " must have shape (" #__VA_ARGS__ ")")

#define DISPATCH_ITYPE_FLOAT_AND_HALF_AND_BF16(ITYPE, NAME, ...)                    \
    if (ITYPE == at::ScalarType::Half) {                                            \
        using input_t = at::Half;                                                   \
        __VA_ARGS__();                                                              \
    } else if (ITYPE == at::ScalarType::BFloat16) {                                 \
        using input_t = at::BFloat16;                                               \
        __VA_ARGS__();                                                              \
    } else if (ITYPE == at::ScalarType::Float)  {                                   \
        using input_t = float;                                                      \
        __VA_ARGS__();                                                              \
    } else {                                                                        \
        AT_ERROR(#NAME, " not implemented for input type '", toString(ITYPE), "'"); \
    }

// One token a call: the state of a channel moves by one, a thread a channel.
template<int kNThreads, int kWidth, typename input_t>
__global__ __launch_bounds__(kNThreads)
void causal_conv1d_update_kernel(ConvUpdateParams params) {
    const int batch_id = blockIdx.x;
    const int channel_id = blockIdx.y * kNThreads + threadIdx.x;
    if (channel_id >= params.dim) return;

    input_t *x = reinterpret_cast<input_t *>(params.x_ptr) + batch_id * params.x_batch_stride
        + channel_id * params.x_c_stride;
    input_t *conv_state = reinterpret_cast<input_t *>(params.conv_state_ptr)
        + batch_id * params.conv_state_batch_stride + channel_id * params.conv_state_c_stride;
    input_t *weight = reinterpret_cast<input_t *>(params.weight_ptr) + channel_id * params.weight_c_stride;
    input_t *out = reinterpret_cast<input_t *>(params.out_ptr) + batch_id * params.out_batch_stride
        + channel_id * params.out_c_stride;
    float out_val = params.bias_ptr == nullptr ? 0.f : float(reinterpret_cast<input_t *>(params.bias_ptr)[channel_id]);

    float x_vals[kWidth] = {0};
    #pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) { x_vals[i] = float(conv_state[i]); }
    x_vals[kWidth - 1] = float(x[0]);
    #pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) { conv_state[i] = input_t(x_vals[i + 1]); }
    #pragma unroll
    for (int i = 0; i < kWidth; ++i) { out_val += float(weight[i * params.weight_width_stride]) * x_vals[i]; }
    if (params.silu_activation) { out_val = out_val / (1 + expf(-out_val)); }
    out[0] = input_t(out_val);
}

template<typename input_t>
void causal_conv1d_update_cuda(ConvUpdateParams &params, cudaStream_t stream) {
    constexpr int kNThreads = 64;
    dim3 grid(params.batch, (params.dim + kNThreads - 1) / kNThreads);
    causal_conv1d_update_kernel<kNThreads, 4, input_t><<<grid, kNThreads, 0, stream>>>(params);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void causal_conv1d_update(const at::Tensor &x, const at::Tensor &conv_state, const at::Tensor &weight,
                          const at::Tensor &bias, at::Tensor &out, bool silu_activation) {
    const int batch_size = x.size(0);
    const int dim = x.size(1);
    const int width = weight.size(-1);
    TORCH_CHECK(width == 4);
    CHECK_SHAPE(conv_state, batch_size, dim, width - 1);

    ConvUpdateParams params;
    memset(&params, 0, sizeof(params));
    params.batch = batch_size;
    params.dim = dim;
    params.seqlen = 1;
    params.width = width;
    params.silu_activation = silu_activation;
    params.x_ptr = x.data_ptr();
    params.weight_ptr = weight.data_ptr();
    params.bias_ptr = bias.data_ptr();
    params.out_ptr = out.data_ptr();
    params.conv_state_ptr = conv_state.data_ptr();
    params.x_batch_stride = x.stride(0);
    params.x_c_stride = x.stride(1);
    params.weight_c_stride = weight.stride(0);
    params.weight_width_stride = weight.stride(1);
    params.out_batch_stride = out.stride(0);
    params.out_c_stride = out.stride(1);
    params.conv_state_batch_stride = conv_state.stride(0);
    params.conv_state_c_stride = conv_state.stride(1);

    auto stream = at::cuda::getCurrentCUDAStream().stream();
    DISPATCH_ITYPE_FLOAT_AND_HALF_AND_BF16(x.scalar_type(), "causal_conv1d_update", [&] {
        causal_conv1d_update_cuda<input_t>(params, stream);
    });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("causal_conv1d_update", &causal_conv1d_update, "one step"); }
