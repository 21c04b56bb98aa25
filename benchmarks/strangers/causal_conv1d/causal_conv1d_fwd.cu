#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/cuda/CUDAException.h>  // For C10_CUDA_CHECK and C10_CUDA_KERNEL_LAUNCH_CHECK

#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>

#include "causal_conv1d.h"

template<int kNThreads_, int kWidth_, typename input_t_, typename weight_t_>
struct Causal_conv1d_fwd_kernel_traits {
    using input_t = input_t_;
    using weight_t = weight_t_;
    static constexpr int kNThreads = kNThreads_;
    static constexpr int kWidth = kWidth_;
    static constexpr int kNElts = sizeof(input_t) == 4 ? 4 : 8;
    static_assert(kWidth <= kNElts);
    using BlockLoadT = cub::BlockLoad<input_t, kNThreads, kNElts, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using BlockStoreT = cub::BlockStore<input_t, kNThreads, kNElts, cub::BLOCK_STORE_WARP_TRANSPOSE>;
    static constexpr int kSmemIOSize = sizeof(typename BlockLoadT::TempStorage) > sizeof(typename BlockStoreT::TempStorage)
        ? sizeof(typename BlockLoadT::TempStorage) : sizeof(typename BlockStoreT::TempStorage);
    static constexpr int kSmemSize = kSmemIOSize + kWidth * sizeof(float);
};

template<typename Ktraits>
__global__ __launch_bounds__(Ktraits::kNThreads)
void causal_conv1d_fwd_kernel(ConvParamsBase params) {
    constexpr int kWidth = Ktraits::kWidth;
    constexpr int kNThreads = Ktraits::kNThreads;
    constexpr int kNElts = Ktraits::kNElts;
    using input_t = typename Ktraits::input_t;
    using weight_t = typename Ktraits::weight_t;

    extern __shared__ char smem_[];
    auto& smem_load = reinterpret_cast<typename Ktraits::BlockLoadT::TempStorage&>(smem_);
    auto& smem_store = reinterpret_cast<typename Ktraits::BlockStoreT::TempStorage&>(smem_);
    float *smem_tail = reinterpret_cast<float *>(smem_ + Ktraits::kSmemIOSize);
    __shared__ float smem_exchange[kNThreads][kWidth];

    const int tidx = threadIdx.x;
    const int batch_id = blockIdx.x;
    const int channel_id = blockIdx.y;
    input_t *x = reinterpret_cast<input_t *>(params.x_ptr) + batch_id * params.x_batch_stride
        + channel_id * params.x_c_stride;
    weight_t *weight = reinterpret_cast<weight_t *>(params.weight_ptr) + channel_id * params.weight_c_stride;
    input_t *out = reinterpret_cast<input_t *>(params.out_ptr) + batch_id * params.out_batch_stride
        + channel_id * params.out_c_stride;
    float bias_val = params.bias_ptr == nullptr ? 0.f : float(reinterpret_cast<weight_t *>(params.bias_ptr)[channel_id]);

    if (tidx < kWidth) { smem_tail[tidx] = 0.f; }
    float weight_vals[kWidth];
    #pragma unroll
    for (int i = 0; i < kWidth; ++i) { weight_vals[i] = float(weight[i * params.weight_width_stride]); }

    constexpr int kChunkSize = kNThreads * kNElts;
    const int n_chunks = (params.seqlen + kChunkSize - 1) / kChunkSize;
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
        input_t x_vals_load[kNElts];
        __syncthreads();
        typename Ktraits::BlockLoadT(smem_load).Load(x, x_vals_load, params.seqlen - chunk * kChunkSize, input_t(0.f));
        x += kChunkSize;
        // each thread leaves its last values for its neighbour
        #pragma unroll
        for (int w = 1; w < kWidth; ++w) { smem_exchange[tidx][w] = float(x_vals_load[kNElts - w]); }
        __syncthreads();
        float x_vals[kWidth - 1 + kNElts];
        #pragma unroll
        for (int w = 1; w < kWidth; ++w) {
            x_vals[kWidth - 1 - w] = tidx > 0 ? smem_exchange[tidx - 1][w] : smem_tail[w];
        }
        #pragma unroll
        for (int i = 0; i < kNElts; ++i) { x_vals[kWidth - 1 + i] = float(x_vals_load[i]); }
        __syncthreads();
        if (tidx == kNThreads - 1) {
            for (int w = 1; w < kWidth; ++w) { smem_tail[w] = smem_exchange[tidx][w]; }
        }
        input_t out_vals_store[kNElts];
        #pragma unroll
        for (int i = 0; i < kNElts; ++i) {
            float acc = bias_val;
            #pragma unroll
            for (int w = 0; w < kWidth; ++w) { acc += weight_vals[w] * x_vals[i + w]; }
            out_vals_store[i] = params.silu_activation ? acc / (1 + expf(-acc)) : acc;
        }
        typename Ktraits::BlockStoreT(smem_store).Store(out, out_vals_store, params.seqlen - chunk * kChunkSize);
        out += kChunkSize;
    }
}

template<int kNThreads, int kWidth, typename input_t, typename weight_t>
void causal_conv1d_fwd_launch(ConvParamsBase &params, cudaStream_t stream) {
    using Ktraits = Causal_conv1d_fwd_kernel_traits<kNThreads, kWidth, input_t, weight_t>;
    constexpr int kSmemSize = Ktraits::kSmemSize;
    dim3 grid(params.batch, params.dim);
    auto kernel = &causal_conv1d_fwd_kernel<Ktraits>;
    if (kSmemSize >= 48 * 1024) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemSize));
    }
    kernel<<<grid, Ktraits::kNThreads, kSmemSize, stream>>>(params);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template<typename input_t, typename weight_t>
void causal_conv1d_fwd_cuda(ConvParamsBase &params, cudaStream_t stream) {
    if (params.width == 2) {
        causal_conv1d_fwd_launch<128, 2, input_t, weight_t>(params, stream);
    } else if (params.width == 3) {
        causal_conv1d_fwd_launch<128, 3, input_t, weight_t>(params, stream);
    } else if (params.width == 4) {
        causal_conv1d_fwd_launch<128, 4, input_t, weight_t>(params, stream);
    }
}

template void causal_conv1d_fwd_cuda<float, float>(ConvParamsBase &params, cudaStream_t stream);
template void causal_conv1d_fwd_cuda<at::Half, at::Half>(ConvParamsBase &params, cudaStream_t stream);
template void causal_conv1d_fwd_cuda<at::BFloat16, at::BFloat16>(ConvParamsBase &params, cudaStream_t stream);
