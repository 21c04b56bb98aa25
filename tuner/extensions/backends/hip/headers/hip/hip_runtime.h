// HIP's names for clang's AMDGPU target, for machines without ROCm: what a kernel itself needs.
//
// Functions of C's <math.h> come from the compiler, which expands exp, log, sqrt and division itself;
// sin, cos, pow and erf are in ROCm's device libraries alone.
#pragma once

#include <float.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
// The least number is of blocks on a compute unit, and the compiler's is of waves on a SIMD: as in
// ROCm's header, the one is taken for the other.
#define TUNE_BOUNDS_1(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define TUNE_BOUNDS_2(threads, waves) TUNE_BOUNDS_1(threads) __attribute__((amdgpu_waves_per_eu(waves)))
#define TUNE_BOUNDS(a, b, chosen, ...) chosen
#define __launch_bounds__(...) TUNE_BOUNDS(__VA_ARGS__, TUNE_BOUNDS_2, TUNE_BOUNDS_1, )(__VA_ARGS__)
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
#define HIP_KERNEL_NAME(...) __VA_ARGS__

#define TUNE_DEVICE static __device__ inline __attribute__((always_inline, unused))

struct TuneThread {
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
  __device__ unsigned get_x() const { return __builtin_amdgcn_workitem_id_x(); }
  __device__ unsigned get_y() const { return __builtin_amdgcn_workitem_id_y(); }
  __device__ unsigned get_z() const { return __builtin_amdgcn_workitem_id_z(); }
};
struct TuneBlock {
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
  __device__ unsigned get_x() const { return __builtin_amdgcn_workgroup_id_x(); }
  __device__ unsigned get_y() const { return __builtin_amdgcn_workgroup_id_y(); }
  __device__ unsigned get_z() const { return __builtin_amdgcn_workgroup_id_z(); }
};
struct TuneBlockSize {
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
  __device__ unsigned get_x() const { return __builtin_amdgcn_workgroup_size_x(); }
  __device__ unsigned get_y() const { return __builtin_amdgcn_workgroup_size_y(); }
  __device__ unsigned get_z() const { return __builtin_amdgcn_workgroup_size_z(); }
};
// Code object version 5: the implicit arguments begin with the number of blocks along each axis.
struct TuneGridSize {
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
  __device__ static unsigned at(int axis) {
    return static_cast<const __constant__ unsigned*>(__builtin_amdgcn_implicitarg_ptr())[axis];
  }
  __device__ unsigned get_x() const { return at(0); }
  __device__ unsigned get_y() const { return at(1); }
  __device__ unsigned get_z() const { return at(2); }
};
extern const __attribute__((device, weak)) TuneThread threadIdx;
extern const __attribute__((device, weak)) TuneBlock blockIdx;
extern const __attribute__((device, weak)) TuneBlockSize blockDim;
extern const __attribute__((device, weak)) TuneGridSize gridDim;
#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z

struct dim3 {
  unsigned x, y, z;
  constexpr __host__ __device__ dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
typedef struct ihipStream_t* hipStream_t;

#define TUNE_VECTORS(TYPE, NAME)                                                                        \
  struct NAME##1 { TYPE x; };                                                                           \
  struct __attribute__((aligned(2 * sizeof(TYPE)))) NAME##2 { TYPE x, y; };                             \
  struct NAME##3 { TYPE x, y, z; };                                                                     \
  struct __attribute__((aligned(4 * sizeof(TYPE) < 16 ? 4 * sizeof(TYPE) : 16))) NAME##4 { TYPE x, y, z, w; }; \
  constexpr __host__ __device__ inline NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }        \
  constexpr __host__ __device__ inline NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; } \
  constexpr __host__ __device__ inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }
TUNE_VECTORS(char, char)
TUNE_VECTORS(unsigned char, uchar)
TUNE_VECTORS(short, short)
TUNE_VECTORS(unsigned short, ushort)
TUNE_VECTORS(int, int)
TUNE_VECTORS(unsigned, uint)
TUNE_VECTORS(long long, longlong)
TUNE_VECTORS(unsigned long long, ulonglong)
TUNE_VECTORS(float, float)
TUNE_VECTORS(double, double)
#undef TUNE_VECTORS

// Waves: 64 lanes on CDNA, 32 on RDNA. Newer clangs have no macro of their own for it.
#ifndef __AMDGCN_WAVEFRONT_SIZE
#ifdef __GFX9__
#define __AMDGCN_WAVEFRONT_SIZE 64
#else
#define __AMDGCN_WAVEFRONT_SIZE 32
#endif
#endif
constexpr int warpSize = __AMDGCN_WAVEFRONT_SIZE;

TUNE_DEVICE unsigned __lane_id() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}

template <class T>
TUNE_DEVICE T tune_of_lane(T value, int lane) {
  static_assert(sizeof(T) <= 8, "a shuffle exchanges values of at most 8 bytes");
  int words[(sizeof(T) + 3) / 4] = {};
  __builtin_memcpy(words, &value, sizeof(T));
  for (int& word : words) word = __builtin_amdgcn_ds_bpermute(lane << 2, word);
  __builtin_memcpy(&value, words, sizeof(T));
  return value;
}
template <class T>
TUNE_DEVICE T __shfl(T value, int source, int width = warpSize) {
  const int lane = __lane_id();
  return tune_of_lane(value, (lane & ~(width - 1)) + (source & (width - 1)));
}
template <class T>
TUNE_DEVICE T __shfl_up(T value, unsigned delta, int width = warpSize) {
  const int lane = __lane_id(), from = lane - static_cast<int>(delta);
  return tune_of_lane(value, from < (lane & ~(width - 1)) ? lane : from);
}
template <class T>
TUNE_DEVICE T __shfl_down(T value, unsigned delta, int width = warpSize) {
  const int lane = __lane_id(), from = lane + static_cast<int>(delta);
  return tune_of_lane(value, from >= (lane & ~(width - 1)) + width ? lane : from);
}
template <class T>
TUNE_DEVICE T __shfl_xor(T value, int mask, int width = warpSize) {
  const int lane = __lane_id(), from = lane ^ mask;
  return tune_of_lane(value, from >= (lane & ~(width - 1)) + width ? lane : from);
}
TUNE_DEVICE unsigned long long __ballot(int predicate) {
#if __AMDGCN_WAVEFRONT_SIZE == 64
  return __builtin_amdgcn_ballot_w64(predicate != 0);
#else
  return __builtin_amdgcn_ballot_w32(predicate != 0);
#endif
}
TUNE_DEVICE unsigned long long __activemask() { return __ballot(1); }
TUNE_DEVICE int __any(int predicate) { return __ballot(predicate) != 0; }
TUNE_DEVICE int __all(int predicate) { return __ballot(predicate) == __activemask(); }

TUNE_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
TUNE_DEVICE void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
TUNE_DEVICE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
TUNE_DEVICE void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
TUNE_DEVICE void __trap() { __builtin_trap(); }

// As HIP's, relaxed and within the device.
#define TUNE_ATOMIC(NAME, OPERATION, TYPE)                                                       \
  TUNE_DEVICE TYPE NAME(TYPE* address, TYPE value) {                                             \
    return __hip_atomic_##OPERATION(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); \
  }
#define TUNE_ATOMICS(NAME, OPERATION)              \
  TUNE_ATOMIC(NAME, OPERATION, int)                \
  TUNE_ATOMIC(NAME, OPERATION, unsigned)           \
  TUNE_ATOMIC(NAME, OPERATION, unsigned long long)
TUNE_ATOMICS(atomicAdd, fetch_add)
TUNE_ATOMICS(atomicMin, fetch_min)
TUNE_ATOMICS(atomicMax, fetch_max)
TUNE_ATOMICS(atomicAnd, fetch_and)
TUNE_ATOMICS(atomicOr, fetch_or)
TUNE_ATOMICS(atomicXor, fetch_xor)
TUNE_ATOMICS(atomicExch, exchange)
TUNE_ATOMIC(atomicAdd, fetch_add, float)
TUNE_ATOMIC(atomicAdd, fetch_add, double)
TUNE_ATOMIC(atomicExch, exchange, float)
#undef TUNE_ATOMICS
#undef TUNE_ATOMIC
template <class T>
TUNE_DEVICE T atomicSub(T* address, T value) { return atomicAdd(address, static_cast<T>(-value)); }
template <class T>
TUNE_DEVICE T atomicCAS(T* address, T expected, T value) {
  __hip_atomic_compare_exchange_strong(address, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

#define TUNE_UNARY(TYPE, NAME, BUILTIN) TUNE_DEVICE TYPE NAME(TYPE x) { return BUILTIN(x); }
#define TUNE_FLOATS(NAME)                           \
  TUNE_UNARY(float, NAME##f, __builtin_##NAME##f)   \
  TUNE_UNARY(double, NAME, __builtin_##NAME)
TUNE_FLOATS(sqrt)
TUNE_FLOATS(fabs)
TUNE_FLOATS(floor)
TUNE_FLOATS(ceil)
TUNE_FLOATS(trunc)
TUNE_FLOATS(rint)
TUNE_FLOATS(nearbyint)
TUNE_FLOATS(round)
#undef TUNE_FLOATS
TUNE_UNARY(float, expf, __builtin_expf)
TUNE_UNARY(float, exp2f, __builtin_exp2f)
TUNE_UNARY(float, exp10f, __builtin_exp10f)
TUNE_UNARY(float, logf, __builtin_logf)
TUNE_UNARY(float, log2f, __builtin_log2f)
TUNE_UNARY(float, log10f, __builtin_log10f)
// 1 ulp by the instruction, as HIP's.
TUNE_UNARY(float, rsqrtf, __builtin_amdgcn_rsqf)
TUNE_UNARY(float, __frsqrt_rn, __builtin_amdgcn_rsqf)
TUNE_UNARY(float, __fsqrt_rn, __builtin_sqrtf)
TUNE_UNARY(float, __expf, __builtin_expf)
TUNE_UNARY(float, __logf, __builtin_logf)
TUNE_UNARY(float, __log2f, __builtin_amdgcn_logf)
#undef TUNE_UNARY
// From the exponential, whose error is at most doubled: near zero the series takes its place.
TUNE_DEVICE float tanhf(float x) {
  const float square = x * x;
  if (square < 0.01f) return x - x * square * (1.0f / 3 - square * (2.0f / 15 - square * (17.0f / 315)));
  return __builtin_copysignf(1.0f - 2.0f / (__builtin_expf(2.0f * __builtin_fabsf(x)) + 1.0f), x);
}
TUNE_DEVICE float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
TUNE_DEVICE float fminf(float x, float y) { return __builtin_fminf(x, y); }
TUNE_DEVICE double fmax(double x, double y) { return __builtin_fmax(x, y); }
TUNE_DEVICE double fmin(double x, double y) { return __builtin_fmin(x, y); }
TUNE_DEVICE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TUNE_DEVICE double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
TUNE_DEVICE float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
TUNE_DEVICE float ldexpf(float x, int by) { return __builtin_ldexpf(x, by); }
TUNE_DEVICE float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TUNE_DEVICE float __frcp_rn(float x) { return 1.0f / x; }
TUNE_DEVICE float __fdividef(float x, float y) { return x / y; }
TUNE_DEVICE float __fdiv_rn(float x, float y) { return x / y; }
TUNE_DEVICE float __saturatef(float x) { return __builtin_amdgcn_fmed3f(x, 0.0f, 1.0f); }

template <class T>
TUNE_DEVICE T __ldg(const T* address) { return *address; }

#define TUNE_LESSER(TYPE)                                       \
  TUNE_DEVICE TYPE min(TYPE x, TYPE y) { return y < x ? y : x; } \
  TUNE_DEVICE TYPE max(TYPE x, TYPE y) { return x < y ? y : x; }
TUNE_LESSER(int)
TUNE_LESSER(unsigned)
TUNE_LESSER(long)
TUNE_LESSER(unsigned long)
TUNE_LESSER(long long)
TUNE_LESSER(unsigned long long)
#undef TUNE_LESSER
TUNE_DEVICE float min(float x, float y) { return __builtin_fminf(x, y); }
TUNE_DEVICE float max(float x, float y) { return __builtin_fmaxf(x, y); }
TUNE_DEVICE double min(double x, double y) { return __builtin_fmin(x, y); }
TUNE_DEVICE double max(double x, double y) { return __builtin_fmax(x, y); }

TUNE_DEVICE int __popc(unsigned x) { return __builtin_popcount(x); }
TUNE_DEVICE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
TUNE_DEVICE int __clz(int x) { return x ? __builtin_clz(x) : 32; }
TUNE_DEVICE int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
TUNE_DEVICE int __ffs(int x) { return __builtin_ffs(x); }
TUNE_DEVICE int __ffsll(long long x) { return __builtin_ffsll(x); }
TUNE_DEVICE unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
TUNE_DEVICE unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
TUNE_DEVICE int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
TUNE_DEVICE unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
TUNE_DEVICE unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
TUNE_DEVICE int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
TUNE_DEVICE float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
TUNE_DEVICE float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
TUNE_DEVICE int __float2int_rn(float x) { return static_cast<int>(__builtin_rintf(x)); }
TUNE_DEVICE int __float2int_rz(float x) { return static_cast<int>(x); }
TUNE_DEVICE float __int2float_rn(int x) { return static_cast<float>(x); }
