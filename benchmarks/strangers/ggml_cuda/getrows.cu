#include "getrows.cuh"

template<typename src0_t, typename dst_t>
static __global__ void k_get_rows_float(
        const src0_t * src0, const int32_t * src1, dst_t * dst,
        const int64_t ne00, const size_t s1, const size_t nb01) {

    const int i00 = blockIdx.y*blockDim.x + threadIdx.x;
    const int i10 = blockIdx.x;

    if (i00 >= ne00) {
        return;
    }

    const int i01 = src1[i10];

    dst_t * dst_row = dst + i10*s1;
    const src0_t * src0_row = (const src0_t *)((const char *) src0 + i01*nb01);

    dst_row[i00] = float(src0_row[i00]);
}

template<typename src0_t, typename dst_t>
static void get_rows_cuda_float(
        const src0_t * src0_d, const int32_t * src1_d, dst_t * dst_d,
        const int64_t ne00, const size_t nb01, const int64_t ne10, const size_t nb1, cudaStream_t stream) {
    const dim3 block_dims(CUDA_GET_ROWS_BLOCK_SIZE, 1, 1);
    const int block_num_y = (ne00 + CUDA_GET_ROWS_BLOCK_SIZE - 1) / CUDA_GET_ROWS_BLOCK_SIZE;
    const dim3 block_nums(ne10, block_num_y, 1);

    // strides in elements
    const size_t s1 = nb1 / sizeof(dst_t);

    k_get_rows_float<<<block_nums, block_dims, 0, stream>>>(src0_d, src1_d, dst_d, ne00, s1, nb01);
}

void ggml_cuda_op_get_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const ggml_tensor * src1 = dst->src[1];
    cudaStream_t stream = ctx.stream();

    const int32_t * src1_d = (const int32_t *) src1->data;
    float * dst_d = (float *) dst->data;

    switch (src0->type) {
        case GGML_TYPE_F16:
            get_rows_cuda_float((const half *) src0->data, src1_d, dst_d, src0->ne[0], src0->nb[1], src1->ne[0], dst->nb[1], stream);
            break;
        case GGML_TYPE_F32:
            get_rows_cuda_float((const float *) src0->data, src1_d, dst_d, src0->ne[0], src0->nb[1], src1->ne[0], dst->nb[1], stream);
            break;
        default:
            GGML_ABORT("%s: unsupported src0 type: %s\n", __func__, ggml_type_name(src0->type));
            break;
    }
}
