#include "device_side.cuh"
#include "tempers.cuh"

#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>

#define CREW 512
#define EACH 3
#define CARGO (CREW * EACH)

// Brings a tile of one array to the registers of a crew, and back.
template <typename V>
struct Ferry {
    using Inbound = cub::BlockLoad<V, CREW, EACH, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using Outbound = cub::BlockStore<V, CREW, EACH, cub::BLOCK_STORE_WARP_TRANSPOSE>;
    union Dock {
        typename Inbound::TempStorage inbound;
        typename Outbound::TempStorage outbound;
    };
};

// A particle heats as it is pulled; heat makes it slow, or sets the least pull that moves it.
template <typename T, int TEMPER>
__launch_bounds__(CREW, 2) __global__ void kTemperedPull(
    T* place, T* pull, float* heat, const float rate, const float cooling, const float leak, const int round,
    const int count
) {
    __shared__ union {
        typename Ferry<T>::Dock things;
        typename Ferry<float>::Dock warmth;
    } dock;
    T places[EACH], pulls[EACH];
    float heats[EACH];

    for (int first = CARGO * blockIdx.x; first < count; first += CARGO * gridDim.x) {
        const int aboard = min(count - first, CARGO);
        typename Ferry<T>::Inbound(dock.things.inbound).Load(place + first, places, aboard);
        __syncthreads();
        typename Ferry<T>::Inbound(dock.things.inbound).Load(pull + first, pulls, aboard);
        __syncthreads();
        typename Ferry<float>::Inbound(dock.warmth.inbound).Load(heat + first, heats, aboard);
        __syncthreads();

#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const float force = static_cast<float>(pulls[k]);
            const float kept = round > 0 ? cooling * heats[k] : 0.0f;
            float here = static_cast<float>(places[k]) * (1.0f - leak);
            switch (TEMPER) {
            case SLUGGISH:
                heats[k] = kept + fabsf(force);
                here -= rate * force / (1.0f + heats[k]);
                break;
            case RATCHET:
                if (fabsf(force) > kept)
                    here -= rate * (force - copysignf(kept, force));
                heats[k] = fmaxf(kept, fabsf(force));
                break;
            }
            places[k] = static_cast<T>(here);
        }

        typename Ferry<T>::Outbound(dock.things.outbound).Store(place + first, places, aboard);
        __syncthreads();
        typename Ferry<float>::Outbound(dock.warmth.outbound).Store(heat + first, heats, aboard);
        __syncthreads();
    }
}

#define TEMPERED_PULL(TEMPER, ELEMENT)                                                                         \
    template __global__ void kTemperedPull<ELEMENT, TEMPER>(                                                   \
        ELEMENT*, ELEMENT*, float*, const float, const float, const float, const int, const int                \
    );

TEMPERED_PULL(SLUGGISH, half)
TEMPERED_PULL(SLUGGISH, float)
TEMPERED_PULL(RATCHET, half)
TEMPERED_PULL(RATCHET, float)
