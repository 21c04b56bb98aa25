#include "even_out.cuh"

template <int crew>
static __global__ void even_out_f32(const float * uneven, float * evened, const int cols, const float rest) {
    const int me = threadIdx.x;
    const float * from = uneven + (int64_t) cols*blockIdx.x;
    float       * to   = evened + (int64_t) cols*blockIdx.x;

    float2 weight = {0.0f, 0.0f};  // above zero, below zero
    for (int c = me; c < cols; c += crew) {
        weight.x += fmaxf(from[c], 0.0f);
        weight.y -= fminf(from[c], 0.0f);
    }

    weight = sum_both(weight);
    if constexpr (crew > LANES) {
        constexpr int teams = crew / LANES;
        __shared__ float2 of_team[teams];
        if (me % LANES == 0) {
            of_team[me/LANES] = weight;
        }
        __syncthreads();
        weight = sum_both<teams>(of_team[me % teams]);
    }

    const float tilt = (weight.x - weight.y) / (weight.x + weight.y + rest);
    for (int c = me; c < cols; c += crew) {
        to[c] = from[c] * (from[c] > 0.0f ? 1.0f - tilt : 1.0f + tilt);
    }
}

static void even_out_rows_f32(const float * uneven, float * evened, const int cols, const int rows, const float rest, cudaStream_t belt) {
    if (cols > 512) {
        constexpr int crew = 256;
        even_out_f32<crew><<<rows, dim3(crew), 0, belt>>>(uneven, evened, cols, rest);
        return;
    }
    even_out_f32<LANES><<<rows, dim3(LANES), 0, belt>>>(uneven, evened, cols, rest);
}

void even_out_rows(const workbench & bench, ggml_tensor * evened) {
    const ggml_tensor * uneven = evened->src[0];
    GGML_ASSERT(ggml_is_contiguous(uneven) && ggml_are_same_shape(uneven, evened));
    GGML_ASSERT(uneven->type == GGML_TYPE_F32);

    float rest;
    std::memcpy(&rest, evened->op_params, sizeof(rest));
    even_out_rows_f32((const float *) uneven->data, (float *) evened->data, uneven->ne[0], ggml_nrows(uneven), rest, bench.belt());
}
