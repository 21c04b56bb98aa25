#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <sstream>
#include <stdexcept>

namespace trellis::kit
{

// What went wrong, where, and what the runtime calls it.
inline void insist(bool holds, char const* what, char const* detail, int where)
{
    if (holds)
    {
        return;
    }
    std::ostringstream told;
    told << what << " (" << detail << ", line " << where << ")";
    throw std::runtime_error(told.str());
}

#define KIT_INSIST(HOLDS) ::trellis::kit::insist(static_cast<bool>(HOLDS), #HOLDS, "does not hold", __LINE__)

#define KIT_RUNTIME(CALL)                                                                                              \
    if (cudaError_t const kitStatus = (CALL); kitStatus != cudaSuccess)                                                \
    ::trellis::kit::insist(false, #CALL, cudaGetErrorString(kitStatus), __LINE__)

template <typename Count>
__host__ __device__ constexpr Count sharesOf(Count whole, Count share)
{
    return (whole + share - 1) / share;
}

inline bool overlapWanted()
{
    return false;
}

} // namespace trellis::kit
