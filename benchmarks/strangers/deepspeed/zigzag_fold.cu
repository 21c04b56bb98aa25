#include "rowkit.h"

namespace zigzag {
constexpr int block_size = 768;
}

ON_GPU float distance_to_step(float at, float pitch_inverse, float height)
{
    const float turns = at * pitch_inverse;
    return height * fabsf(turns - rintf(turns));
}

// Folds a matrix in place: how far each entry, moved by its column's lead, is from a multiple of four.
template <typename T>
__global__ void zigzag_fold_kernel(T* entries, const T* lead, int columns, int entry_count)
{
    constexpr int per_pack = pack_bytes / sizeof(T);
    const int first = per_pack * (threadIdx.x + blockIdx.x * blockDim.x);
    if (first >= entry_count) return;

    alignas(pack_bytes) T here[per_pack];
    alignas(pack_bytes) T moved[per_pack];
    fetch_pack(here, entries + first);
    if (lead == nullptr)
        clear_pack(moved);
    else
        fetch_pack(moved, lead + first % columns);

#pragma unroll
    for (int k = 0; k < per_pack; ++k) {
        const float at = widen(here[k]) + widen(moved[k]);
        here[k] = narrow<T>(distance_to_step(at, 0.25f, 4.f));
    }
    fetch_pack(entries + first, here);
}

template <typename T>
void fold_matrix(cudaStream_t stream, T* entries, const T* lead, int lines, int columns)
{
    const int entry_count = lines * columns;
    const int packs = entry_count / (pack_bytes / sizeof(T));
    const int blocks = (packs + zigzag::block_size - 1) / zigzag::block_size;
    zigzag_fold_kernel<T><<<blocks, zigzag::block_size, 0, stream>>>(entries, lead, columns, entry_count);
}

#define FOLD_FOR(T) template void fold_matrix(cudaStream_t, T*, const T*, int, int)

FOLD_FOR(__half);
FOLD_FOR(float);
#if __CUDA_ARCH__ >= 800 || !defined(__CUDA_ARCH__)
FOLD_FOR(__nv_bfloat16);
#endif
