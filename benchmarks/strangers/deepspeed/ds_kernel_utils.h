#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define DS_HD_INLINE __host__ __device__ __forceinline__
#define DS_D_INLINE __device__ __forceinline__

#ifdef __HIP_PLATFORM_AMD__
constexpr int hw_warp_size = 64;
#else
constexpr int hw_warp_size = 32;
#endif

#include <cooperative_groups.h>
namespace cg = cooperative_groups;

template <typename TARGET, typename SOURCE>
DS_D_INLINE TARGET to(SOURCE value)
{
    return static_cast<TARGET>(static_cast<float>(value));
}

template <typename T>
DS_D_INLINE void load_16_bytes(T* dst, const T* src, bool do_access)
{
    float4 data = make_float4(0.f, 0.f, 0.f, 0.f);
    if (do_access) data = *reinterpret_cast<const float4*>(src);
    *reinterpret_cast<float4*>(dst) = data;
}
