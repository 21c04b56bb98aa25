#include "device_side.cuh"
#include "host_side.cuh"

// blocks that hold `count` things, `each` to a block
static inline int blocksFor(int count, int each) { return count / each + (count % each ? 1 : 0); }

template <typename T>
void spreadSextets(
    const unsigned char* triples, const float* pitch, T* tones, const int count, int span, cudaStream_t stream
) {
    constexpr int tile = 768;
    const int tiles = blocksFor(count, tile);
    kSpreadSextets<T, tile><<<tiles, 96, 0, stream>>>(triples, pitch, tones, count, span);
    STOP_IF_FAILED(cudaGetLastError());
}

template <typename T, int TEMPER>
void temperedPull(T* place, T* pull, float* heat, float rate, float cooling, float leak, int round, const int count) {
    kTemperedPull<T, TEMPER>
        <<<blocksFor(count, 1536), 512>>>(place, pull, heat, rate, cooling, leak, round, count);
    STOP_IF_FAILED(cudaGetLastError());
}

template <typename T>
void fiveCalls(const T* rows, float* typical, signed char* calls, int height, int width, cudaStream_t stream) {
    kFiveCalls<T, 192><<<height, 192, 0, stream>>>(rows, typical, calls, width);
    STOP_IF_FAILED(cudaGetLastError());
}

// What Python's ctypes may call.
extern "C" {
void cspread_sextets_fp32(unsigned char* triples, float* pitch, float* tones, int count, int span, cudaStream_t stream) {
    spreadSextets<float>(triples, pitch, tones, count, span, stream);
}
void cspread_sextets_bf16(
    unsigned char* triples, float* pitch, __nv_bfloat16* tones, int count, int span, cudaStream_t stream
) {
    spreadSextets<__nv_bfloat16>(triples, pitch, tones, count, span, stream);
}
void cfive_calls_fp16(half* rows, float* typical, signed char* calls, int height, int width, cudaStream_t stream) {
    fiveCalls<half>(rows, typical, calls, height, width, stream);
}
}

#define TEMPERED(TEMPER, ELEMENT)                                                                              \
    template void temperedPull<ELEMENT, TEMPER>(ELEMENT*, ELEMENT*, float*, float, float, float, int, const int);

TEMPERED(SLUGGISH, half)
TEMPERED(SLUGGISH, float)
TEMPERED(RATCHET, half)
TEMPERED(RATCHET, float)
