#include "launchKit.h"

#include <cstdint>

namespace trellis
{
namespace ground
{

constexpr int kPatch = 32;
constexpr int kPatchThreads = 4;

struct AntipodeJob
{
    void const* plane;
    void* blended;
    int32_t width;
    int32_t height;
    int32_t layers;
    float share;
};

// Blends each point with the one that lies opposite in its square patch; outside the plane lie noughts.
template <typename T>
__global__ void blendAntipodes(AntipodeJob const job)
{
    __shared__ float patch[kPatch][kPatch];
    auto const* plane = static_cast<T const*>(job.plane);
    auto* blended = static_cast<T*>(job.blended);
    int64_t const layer = static_cast<int64_t>(job.width) * job.height * blockIdx.z;
    int const x = kPatch * blockIdx.x + threadIdx.x;
    int const top = kPatch * blockIdx.y;

#pragma unroll
    for (int line = threadIdx.y; line < kPatch; line += kPatchThreads)
    {
        int const y = top + line;
        bool const inside = x < job.width && y < job.height;
        patch[line][threadIdx.x] = inside ? static_cast<float>(plane[layer + int64_t(y) * job.width + x]) : 0.f;
    }
    __syncthreads();
    if (x >= job.width)
    {
        return;
    }
#pragma unroll
    for (int line = threadIdx.y; line < kPatch; line += kPatchThreads)
    {
        int const y = top + line;
        if (y < job.height)
        {
            float const far = patch[kPatch - 1 - line][kPatch - 1 - threadIdx.x];
            float const near = patch[line][threadIdx.x];
            blended[layer + int64_t(y) * job.width + x] = static_cast<T>(near + job.share * (far - near));
        }
    }
}

template <typename T>
void launchAntipodes(AntipodeJob const& job, cudaStream_t stream)
{
    dim3 patches;
    patches.x = kit::sharesOf(job.width, kPatch);
    patches.y = kit::sharesOf(job.height, kPatch);
    patches.z = job.layers;
    blendAntipodes<T><<<patches, dim3(kPatch, kPatchThreads), 0, stream>>>(job);
}

void invokeAntipodePatches(AntipodeJob const& job, int const bytesEach, cudaStream_t stream)
{
    KIT_INSIST(job.width > 0 && job.height > 0);
    switch (bytesEach)
    {
    case 2: launchAntipodes<half>(job, stream); break;
    case 4: launchAntipodes<float>(job, stream); break;
    default: KIT_INSIST(!"elements of 2 or 4 bytes");
    }
}

} // namespace ground
} // namespace trellis
