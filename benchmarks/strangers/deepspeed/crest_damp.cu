#include "rowkit.h"

namespace crest {
constexpr int crew = 192;
constexpr int squads = crew / squad;
}  // namespace crest

// Every row is divided by 1 + weight * crest, where its crest is the greatest magnitude over the mean one.
template <typename T, int Packs>
__global__ void __launch_bounds__(crest::crew)
crest_damp_kernel(const T* rows_in, const T* weight, T* rows_out, float* crests, int width, float calm)
{
    constexpr int per_pack = pack_bytes / sizeof(T);
    __shared__ float squad_total[crest::squads], squad_peak[crest::squads];

    coop::thread_block everyone = coop::this_thread_block();
    auto mates = coop::tiled_partition<squad>(everyone);
    const size_t row_start = size_t(blockIdx.x) * width;

    alignas(pack_bytes) T kept[Packs][per_pack];
    float total = 0.f, peak = 0.f;
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
        const int column = (p * crest::crew + threadIdx.x) * per_pack;
        if (column < width)
            fetch_pack(kept[p], rows_in + row_start + column);
        else
            clear_pack(kept[p]);
        for (int k = 0; k < per_pack; ++k) {
            const float size = fabsf(widen(kept[p][k]));
            total += size;
            peak = fmaxf(peak, size);
        }
    }

    total = coop::reduce(mates, total, coop::plus<float>());
    peak = coop::reduce(mates, peak, coop::greater<float>());
    if (mates.thread_rank() == 0) {
        squad_total[mates.meta_group_rank()] = total;
        squad_peak[mates.meta_group_rank()] = peak;
    }
    everyone.sync();
    total = calm * width;
    peak = 0.f;
    for (int s = 0; s < crest::squads; ++s) {
        total += squad_total[s];
        peak = fmaxf(peak, squad_peak[s]);
    }
    const float height = peak / (total / width);
    if (threadIdx.x == 0) crests[blockIdx.x] = height;

#pragma unroll
    for (int p = 0; p < Packs; ++p) {
        const int column = (p * crest::crew + threadIdx.x) * per_pack;
        if (column >= width) break;
        for (int k = 0; k < per_pack; ++k) {
            const float divisor = 1.f + fabsf(widen(weight[column + k])) * height;
            rows_out[row_start + column + k] = narrow<T>(widen(kept[p][k]) / divisor);
        }
    }
}

#define DAMP_WITH(packs)                                                                       \
    case packs:                                                                                \
        crest_damp_kernel<T, packs><<<rows, crest::crew, 0, on>>>(in, weight, out, crests, width, calm); \
        return true

template <typename T>
bool damp_crests(const T* in, const T* weight, T* out, float* crests, float calm, int rows, int width, cudaStream_t on)
{
    constexpr int reach = crest::crew * pack_bytes / sizeof(T);
    switch ((width + reach - 1) / reach) {
        DAMP_WITH(1);
        DAMP_WITH(2);
        DAMP_WITH(4);
        default: return false;
    }
}

#define DAMP_FOR(T) template bool damp_crests(const T*, const T*, T*, float*, float, int, int, cudaStream_t)
DAMP_FOR(__nv_bfloat16);
DAMP_FOR(__half);
DAMP_FOR(float);
