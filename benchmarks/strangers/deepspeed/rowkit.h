#pragma once

#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace coop = cooperative_groups;

#define ON_GPU __device__ __forceinline__

#ifdef ROWKIT_FOR_ROCM
constexpr int squad = 64;
#else
constexpr int squad = 32;
#endif

// As many T as one transaction moves.
constexpr int pack_bytes = 16;

template <typename T>
ON_GPU float widen(T narrow_one)
{
    return float(narrow_one);
}

template <typename T>
ON_GPU T narrow(float wide_one)
{
    return T(wide_one);
}

template <typename T>
ON_GPU void fetch_pack(T* into, const T* from)
{
    *reinterpret_cast<uint4*>(into) = *reinterpret_cast<const uint4*>(from);
}

template <typename T>
ON_GPU void clear_pack(T* into)
{
    *reinterpret_cast<uint4*>(into) = uint4{0u, 0u, 0u, 0u};
}
