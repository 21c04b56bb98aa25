#include "ring_pick.cuh"

template <typename held_t, typename picked_t>
static __global__ void ring_pick_kernel(
        const held_t * ring, const int32_t * age, picked_t * picked, const int64_t width,
        const int newest, const int slots, const size_t slot_bytes, const size_t picked_step) {
    const int64_t at = threadIdx.x + (int64_t) RING_PICK_CREW*blockIdx.x;
    const int     ask = blockIdx.y;

    if (at < width) {
        // nobody remembers more than the ring holds, nor what is yet to come
        const int back = min(max(age[ask], 0), slots - 1);
        const int slot = ((newest - back) % slots + slots) % slots;

        const char * line = reinterpret_cast<const char *>(ring) + slot*slot_bytes;
        picked[ask*picked_step + at] = (float) reinterpret_cast<const held_t *>(line)[at];
    }
}

template <typename held_t>
static void ring_pick(const workbench & bench, const ggml_tensor * ring, const ggml_tensor * age, ggml_tensor * picked) {
    int32_t newest = 0;
    std::memcpy(&newest, picked->op_params, sizeof(newest));

    const int64_t width = ring->ne[0];
    const dim3    blocks(ROUNDS(width, RING_PICK_CREW), age->ne[0]);
    const size_t  picked_step = picked->nb[1] / sizeof(float);  // from bytes to floats

    ring_pick_kernel<<<blocks, RING_PICK_CREW, 0, bench.belt()>>>(
        static_cast<const held_t *>(ring->data), static_cast<const int32_t *>(age->data), static_cast<float *>(picked->data),
        width, newest, ring->ne[1], ring->nb[1], picked_step);
}

void pick_from_ring(const workbench & bench, ggml_tensor * picked) {
    const ggml_tensor * ring = picked->src[0];
    const ggml_tensor * age  = picked->src[1];
    GGML_ASSERT(age->type == GGML_TYPE_I32 && picked->type == GGML_TYPE_F32);

    switch (ring->type) {
        case GGML_TYPE_F32: return ring_pick<float>(bench, ring, age, picked);
        case GGML_TYPE_F16: return ring_pick<half>(bench, ring, age, picked);
        default:            GGML_ABORT("a ring can't hold %s", ggml_type_name(ring->type));
    }
}
