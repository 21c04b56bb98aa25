#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace trellis
{
namespace ground
{

// Rows of `width` entries; `shelf` may be null.
template <typename Entry>
void invokeUprightRows(Entry const* leaning, Entry const* gain, Entry const* shelf, Entry* upright, int const rows,
    int const width, float const least, cudaStream_t stream = 0);

} // namespace ground
} // namespace trellis
