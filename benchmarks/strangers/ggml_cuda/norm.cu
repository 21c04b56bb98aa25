#include "norm.cuh"

template <int block_size>
static __global__ void norm_f32(const float * x, float * dst, const int ncols, const float eps) {
    const int row = blockIdx.x;
    const int tid = threadIdx.x;

    x   += (int64_t) row*ncols;
    dst += (int64_t) row*ncols;

    float2 mean_var = make_float2(0.0f, 0.0f);
    for (int col = tid; col < ncols; col += block_size) {
        const float xi = x[col];
        mean_var.x += xi;
        mean_var.y += xi * xi;
    }

    // sums of the warps meet in shared memory
    mean_var.x = warp_reduce_sum(mean_var.x);
    mean_var.y = warp_reduce_sum(mean_var.y);
    if constexpr (block_size > WARP_SIZE) {
        __shared__ float2 s_sum[32];
        const int warp_id = tid / WARP_SIZE;
        const int lane_id = tid % WARP_SIZE;
        if (lane_id == 0) {
            s_sum[warp_id] = mean_var;
        }
        __syncthreads();
        mean_var = lane_id < block_size/WARP_SIZE ? s_sum[lane_id] : make_float2(0.0f, 0.0f);
        mean_var.x = warp_reduce_sum(mean_var.x);
        mean_var.y = warp_reduce_sum(mean_var.y);
    }

    const float mean    = mean_var.x / ncols;
    const float var     = mean_var.y / ncols - mean * mean;
    const float inv_std = rsqrtf(var + eps);

    for (int col = tid; col < ncols; col += block_size) {
        dst[col] = (x[col] - mean) * inv_std;
    }
}

static void norm_f32_cuda(const float * x, float * dst, const int ncols, const int nrows, const float eps, cudaStream_t stream) {
    GGML_ASSERT(ncols % WARP_SIZE == 0);
    if (ncols < 1024) {
        const dim3 block_dims(WARP_SIZE, 1, 1);
        norm_f32<WARP_SIZE><<<nrows, block_dims, 0, stream>>>(x, dst, ncols, eps);
    } else {
        const dim3 block_dims(1024, 1, 1);
        norm_f32<1024><<<nrows, block_dims, 0, stream>>>(x, dst, ncols, eps);
    }
}

void ggml_cuda_op_norm(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const float * src0_d = (const float *) src0->data;
    float * dst_d = (float *) dst->data;
    cudaStream_t stream = ctx.stream();

    GGML_ASSERT(src0->type == GGML_TYPE_F32);
    GGML_ASSERT( dst->type == GGML_TYPE_F32);

    float eps;
    memcpy(&eps, dst->op_params, sizeof(float));
    const int64_t ne00 = src0->ne[0];
    const int64_t nrows = ggml_nrows(src0);

    norm_f32_cuda(src0_d, dst_d, ne00, nrows, eps, stream);
}
