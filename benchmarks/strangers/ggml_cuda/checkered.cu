#include "checkered.cuh"

// Gives way the more, the larger the other is.
static __device__ __forceinline__ float dodge(float mine, float yours) {
    return mine / (1.0f + fabsf(yours));
}

// Stays within half a step of the other.
static __device__ __forceinline__ float tether(float mine, float yours) {
    return fminf(yours + 0.5f, fmaxf(yours - 0.5f, mine));
}

// On white squares the first board meets the second, on black ones the second meets the first.
template <float (*meet)(float, float), typename T>
static __global__ void checkered_kernel(const T * first, const T * second, T * board, const int files, const int squares) {
    const int square = threadIdx.x + blockDim.x*blockIdx.x;
    if (square >= squares) {
        return;
    }
    const float a = (float) first[square];
    const float b = (float) second[square];
    const bool black = (square / files + square % files) & 1;
    board[square] = (T) (black ? meet(b, a) : meet(a, b));
}

template <float (*meet)(float, float), typename T>
static void fill_checkered(const workbench & bench, const ggml_tensor * first, const ggml_tensor * second, ggml_tensor * board) {
    const int squares = ggml_nelements(board);
    checkered_kernel<meet><<<ROUNDS(squares, CHECKERED_CREW), CHECKERED_CREW, 0, bench.belt()>>>(
        (const T *) first->data, (const T *) second->data, (T *) board->data, board->ne[0], squares);
}

template <float (*meet)(float, float)>
static void checkered(const workbench & bench, ggml_tensor * board) {
    const ggml_tensor * first  = board->src[0];
    const ggml_tensor * second = board->src[1];
    GGML_ASSERT(ggml_are_same_shape(first, second) && first->type == second->type);

    if (board->type == GGML_TYPE_F32) {
        fill_checkered<meet, float>(bench, first, second, board);
    } else {
        GGML_ASSERT(board->type == GGML_TYPE_F16);
        fill_checkered<meet, half>(bench, first, second, board);
    }
}

void checkered_dodge(const workbench & bench, ggml_tensor * board) {
    checkered<dodge>(bench, board);
}

void checkered_tether(const workbench & bench, ggml_tensor * board) {
    checkered<tether>(bench, board);
}
