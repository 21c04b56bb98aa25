// Each 128 neighbours in a row of x[T, K] as fp8 (e4m3) or int8, with a scale of their own: the
// largest of their absolute values, or 1e-10 if that is more, over 448 or 127. A code is the number
// over its scale, rounded to nearest even. bf16 in, fp32 inside.
//
// scale[K / 128, ceil(T / 4) * 4] is column-major: the scales of a column side by side, so padded
// that each column starts at 16 bytes, as TMA has to have it. Production leaves the padding as it
// was; here it is 0, so that all of an output is defined. Or scale[T, K / 128], without padding.
//
// FUSED: x is [T, 2 K], and silu(x[t, k]) * x[t, K + k] is quantized, not rounded in between. What
// is beyond the largest float counts as that. K is a multiple of 128, and x is finite.
//
// The launch choices are those of SGLang's JIT operator: 256 threads, 8 for a group, 32 bytes of x
// for each of them, and programmatic dependent launch.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#ifndef QUANT
#define QUANT fp8
#endif
#ifndef SCALES
#define SCALES column
#endif
#ifndef FUSED
#define FUSED false
#endif

struct fp8 {
  using Code = __nv_fp8_e4m3;
  static constexpr float kLargest = 448.0f;
  static __device__ Code encode(float x) { return Code(x); }
};

struct int8 {
  using Code = signed char;
  static constexpr float kLargest = 127.0f;
  static __device__ Code encode(float x) {
    return static_cast<Code>(max(-128, min(127, __float2int_rn(x))));
  }
};

enum class Order { column, row };

using Code = QUANT::Code;
constexpr float kLargest = QUANT::kLargest;
constexpr bool kByColumn = Order::SCALES == Order::column;

constexpr int kBlockSize = 256;
constexpr int kGroup = 128;
constexpr int kLanes = 8;  // threads of a group
constexpr int kElements = kGroup / kLanes;
constexpr int kGroupsPerBlock = kBlockSize / kLanes;
constexpr float kLeast = 1e-10f;
constexpr float kLargestFloat = 3.40282347e38f;

struct alignas(16) Vector {
  __nv_bfloat16 values[8];
};

struct alignas(16) Codes {
  Code values[kElements];
};

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

__device__ __forceinline__ void load(float* values, const __nv_bfloat16* source) {
#pragma unroll
  for (int v = 0; v < kElements / 8; ++v) {
    const Vector x = reinterpret_cast<const Vector*>(source)[v];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[8 * v + i] = __bfloat162float(x.values[i]);
  }
}

__device__ __forceinline__ void activate(float* values, const __nv_bfloat16* up) {
  float factors[kElements];
  load(factors, up);
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const float product = silu(values[i]) * factors[i];
    values[i] = fmaxf(-kLargestFloat, fminf(product, kLargestFloat));
  }
}

// grid = ceil(T * K / 128 / 32)
extern "C" __global__ void __launch_bounds__(kBlockSize)
    per_token_group_quant(Code* __restrict__ q, float* __restrict__ scale,
                          const __nv_bfloat16* __restrict__ x, int T, int K) {
  asm volatile("griddepcontrol.wait;" ::: "memory");

  const int per_row = K / kGroup;
  const int group = blockIdx.x * kGroupsPerBlock + threadIdx.x / kLanes;
  if (group >= T * per_row) return;
  const int lane = threadIdx.x % kLanes;
  const int token = group / per_row;
  const int column = group - token * per_row;
  const int at = column * kGroup + lane * kElements;  // in the row

  float values[kElements];
  const __nv_bfloat16* source = x + static_cast<size_t>(token) * (FUSED ? 2 * K : K) + at;
  load(values, source);
  if constexpr (FUSED) activate(values, source + K);

  float largest = kLeast;
#pragma unroll
  for (int i = 0; i < kElements; ++i) largest = fmaxf(largest, fabsf(values[i]));
  const unsigned mask = 0xffu << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(mask, largest, step));
  }

  const float factor = kLargest / largest;
  Codes codes;
#pragma unroll
  for (int i = 0; i < kElements; ++i) codes.values[i] = QUANT::encode(values[i] * factor);
  *reinterpret_cast<Codes*>(q + static_cast<size_t>(token) * K + at) = codes;

  if (lane == 0) {
    const float step = largest / kLargest;
    if constexpr (kByColumn) {
      const int height = (T + 3) / 4 * 4;
      float* const target = scale + static_cast<size_t>(column) * height;
      target[token] = step;
      for (int t = token + 1; token == T - 1 && t < height; ++t) target[t] = 0.0f;
    } else {
      scale[group] = step;
    }
  }
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
