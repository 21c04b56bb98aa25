// out[r, c] = (w[r, c] - z[g, c]) * s[g, c], g = r / 128: AWQ's 4-bit weights as 16-bit floats.
//
// An int32 of qweight[R, C] and of zeros[R / 128, C] holds 8 columns of out[R, 8 C]; column j of
// the 8 is nibble 0, 4, 1, 5, 2, 6, 3, 7. The difference of two nibbles is exact in 16 bits, so
// that the product is the only rounding.
//
// The launch choices are those of SGLang's prebuilt operator: blocks of 16 x 16 threads, one int32
// for each of them with its own scales and zeros, and nibbles put into the mantissa of a float.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef DTYPE
#define DTYPE float16
#endif

struct float16 {
  using One = __half;
  using Two = __half2;
  static constexpr unsigned kBase = 0x64006400u;  // twice 1024, whose last bit counts ones
};
struct bfloat16 {
  using One = __nv_bfloat16;
  using Two = __nv_bfloat162;
  static constexpr unsigned kBase = 0x43004300u;  // twice 128
};
using Number = DTYPE::One;
using Pair = DTYPE::Two;

constexpr int kGroup = 128;  // rows that share scales and zeros

struct alignas(16) Eight {
  Pair pairs[4];
};

// Eight nibbles, each added to the base. Shifted by 4 k, an int32 has columns 2 k and 2 k + 1 at
// the low ends of its halves.
__device__ Eight unpacked(unsigned word) {
  Eight result;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const unsigned bits = (word >> 4 * k & 0x000f000fu) | DTYPE::kBase;
    result.pairs[k] = *reinterpret_cast<const Pair*>(&bits);
  }
  return result;
}

extern "C" __global__ void awq_dequantize(Number* __restrict__ out, const int* __restrict__ qweight,
                                          const Number* __restrict__ scales,
                                          const int* __restrict__ zeros, int R, int C) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (column >= C || row >= R) return;
  const size_t at = static_cast<size_t>(row) * C + column;
  const size_t group = static_cast<size_t>(row / kGroup) * C + column;

  const Eight w = unpacked(qweight[at]);
  const Eight z = unpacked(zeros[group]);
  const Eight s = reinterpret_cast<const Eight*>(scales)[group];
  Eight result;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    result.pairs[k] = __hmul2(__hsub2(w.pairs[k], z.pairs[k]), s.pairs[k]);
  }
  reinterpret_cast<Eight*>(out)[at] = result;
}
