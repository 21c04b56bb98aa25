#include "device_side.cuh"
#include "tempers.cuh"

#include <cub/block/block_load.cuh>

// A byte counts three digits of base six; six rungs, lowest first, stand for the digits.
__device__ static const float dRungs[6] = {-1.25f, -0.5f, -0.125f, 0.125f, 0.5f, 1.25f};

__device__ __forceinline__ float dRung(int digit) { return dRungs[digit < 5 ? digit : 5]; }

template <typename T, int TILE>
__global__ void kSpreadSextets(
    const unsigned char* triples, const float* pitch, T* tones, const int count, const int span
) {
    const int tile = TILE * blockIdx.x;
    for (int k = threadIdx.x; k < TILE / 3; k += blockDim.x) {
        int tone = tile + 3 * k;
        if (tone < count) {
            const int packed = triples[tone / 3];
            tones[tone] = T(dRung(packed / 36) * __ldg(pitch + tone / span));
            if (++tone < count)
                tones[tone] = T(dRung(packed / 6 % 6) * __ldg(pitch + tone / span));
            if (++tone < count)
                tones[tone] = T(dRung(packed % 6) * __ldg(pitch + tone / span));
        }
    }
}

#define SPREAD_TO(ELEMENT)                                                                                     \
    template __global__ void kSpreadSextets<ELEMENT, 768>(                                                     \
        const unsigned char*, const float*, ELEMENT*, const int, const int                                     \
    );

SPREAD_TO(__nv_bfloat16)
SPREAD_TO(half)
SPREAD_TO(float)
