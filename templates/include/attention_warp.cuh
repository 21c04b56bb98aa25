// A warp's part of a row: scores of its tokens, their powers, and sums of values. Tokens fill the rows of
// the products of keys and queries, columns of out those of values and probabilities; queries are the
// columns of both.
constexpr int kTiles = (kQueries + 7) / 8;  // of queries
constexpr int kSteps = kDim / 16;
constexpr int kTokenTiles = kTokens / 16;

// Two numbers as an operand has them, the first in the lower half.
__device__ __forceinline__ unsigned operand_pair(float first, float second) {
//% if KV == "fp8"
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
//% else
  return rounded(first, second);
//% endif
}

// Two queries' numbers of one token become two tokens' numbers of one query.
__device__ __forceinline__ unsigned transposed_pair(float first, float second) {
  unsigned result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(operand_pair(first, second)));
  return result;
}
//% if KV == "fp8"

// The lower two of four codes.
__device__ __forceinline__ unsigned decoded(unsigned codes) {
  unsigned pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(codes)));
  return pair;
}

// Row `lane / 4` of four matrices of 8 x 16 codes: 16 x 32 of keys. Which column of an operand a code
// becomes is free, if the queries' are in the same order: here neighbours stay in a lane.
__device__ __forceinline__ void decode_keys(unsigned (&first)[4], unsigned (&second)[4], const unsigned (&codes)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    first[i] = decoded(codes[i]);
    first[i + 2] = decoded(codes[i] >> 16);
    second[i] = decoded(codes[i + 2]);
    second[i + 2] = decoded(codes[i + 2] >> 16);
  }
}

// Of values a lane has two columns of two tokens, which become rows that are eight apart.
__device__ __forceinline__ void decode_values(unsigned (&first)[4], unsigned (&second)[4],
                                              const unsigned (&codes)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned of_first = __byte_perm(codes[i], 0, 0x3120);
    const unsigned of_second = __byte_perm(codes[i + 2], 0, 0x3120);
    first[2 * i] = decoded(of_first);
    first[2 * i + 1] = decoded(of_first >> 16);
    second[2 * i] = decoded(of_second);
    second[2 * i + 1] = decoded(of_second >> 16);
  }
}
//% endif

// Of what a lane holds of columns of out: where the first of two rows of 16 is, and how far the second.
constexpr int kColumnStep = kCoded ? 2 : 1;
constexpr int kColumnApart = kCoded ? 1 : 8;

struct WarpPart {
  unsigned queries[kTiles][kSteps][2];
  float sums[kTiles][kSteps][4];
  float top[kTiles][2];
  float total[kTiles][2];  // of this lane's tokens
  float scales[kTiles][2];
  int lane;

  // `q` is the first of the queries, `scale` that of scores.
  __device__ __forceinline__ void begin(const Number* q, float scale) {
    lane = threadIdx.x % kWarp;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int query = t * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = kCoded ? lane % 4 * 4 + i * 2 : lane % 4 * 2 + i * 8;
          const Number* from = q + query * kDim + j * 16 + column;
          queries[t][j][i] = query < kQueries ? *reinterpret_cast<const unsigned*>(from) : 0;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][j][i] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        top[t][i] = __uint_as_float(0xff800000u);
        total[t][i] = 0.0f;
        scales[t][i] = scale;
      }
//% if KV == "fp8"
      normalize(t);
//% endif
    }
  }
//% if KV == "fp8"

  // Half precision has not the range of bf16: queries are divided by a power of two of their own, near
  // their largest number, which scores are multiplied by.
  __device__ __forceinline__ void normalize(int t) {
    float largest = 0.0f;
#pragma unroll
    for (int j = 0; j < 2 * kSteps; ++j) {
      const unsigned pair = queries[t][j / 2][j % 2];
      largest = fmaxf(largest, fmaxf(fabsf(low(pair)), fabsf(high(pair))));
    }
    largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 2));
    // Of a product of a power of two and its inverse neither is a denormal.
    const unsigned exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
    const float inverse = __uint_as_float((254u - exponent) << 23);
#pragma unroll
    for (int j = 0; j < 2 * kSteps; ++j) {
      unsigned& pair = queries[t][j / 2][j % 2];
      pair = operand_pair(low(pair) * inverse, high(pair) * inverse);
    }
    const float unit = __uint_as_float(exponent << 23);
#pragma unroll
    for (int i = 0; i < 2; ++i) scales[t][i] *= __shfl_sync(kAll, unit, (lane % 4 * 2 + i) * 4);
  }
//% endif

  // Of the tokens of a stage the first `there` are some.
  __device__ __forceinline__ void add(tune::u32 stage, int there) {
    if (there <= 0) return;
    float scores[kTokenTiles][kTiles][4];
#pragma unroll
    for (int k = 0; k < kTokenTiles; ++k) multiply_keys(scores[k], stage + k * 16 * kRowBytes);
#pragma unroll
    for (int k = 0; k < kTokenTiles; ++k) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool inside = there >= kTokens || k * 16 + i / 2 * 8 + lane / 4 < there;
          scores[k][t][i] = inside ? scores[k][t][i] * scales[t][i % 2] : __uint_as_float(0xff800000u);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) take_powers(scores, t);
#pragma unroll
    for (int k = 0; k < kTokenTiles; ++k) multiply_values(scores[k], stage + kTileBytes + k * 16 * kRowBytes);
  }

  __device__ __forceinline__ void multiply_keys(float (&scores)[kTiles][4], tune::u32 keys) {
    float odd[kTiles][4] = {};  // sums that wait for each other are two
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][i] = 0.0f;
    }
    const tune::u32 row = keys + lane % 16 * kRowBytes + lane / 16 * 16;
#pragma unroll
    for (int j = 0; j < kSteps; j += 2) {
      unsigned first[4];
      unsigned second[4];
//% if KV == "fp8"
      unsigned codes[4];
      tune::ldmatrix(codes, row + j * 16);
      decode_keys(first, second, codes);
//% else
      tune::ldmatrix(first, row + j * 32);
      tune::ldmatrix(second, row + j * 32 + 32);
//% endif
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        tune::mma<Operand>(scores[t], first, queries[t][j]);
        tune::mma<Operand>(odd[t], second, queries[t][j + 1]);
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][i] += odd[t][i];
    }
  }

  // Scores become powers of 2, relative to the largest so far; what was summed follows it.
  __device__ __forceinline__ void take_powers(float (&scores)[kTokenTiles][kTiles][4], int t) {
    float fix[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float larger = top[t][i];
#pragma unroll
      for (int k = 0; k < kTokenTiles; ++k) larger = fmaxf(larger, fmaxf(scores[k][t][i], scores[k][t][i + 2]));
#pragma unroll
      for (int distance = 4; distance < kWarp; distance *= 2) {
        larger = fmaxf(larger, __shfl_xor_sync(kAll, larger, distance));
      }
      fix[i] = power(top[t][i] - larger);
      top[t][i] = larger;
      total[t][i] *= fix[i];
#pragma unroll
      for (int k = 0; k < kTokenTiles; ++k) {
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
          scores[k][t][i + half] = power(scores[k][t][i + half] - larger);
          total[t][i] += scores[k][t][i + half];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][j][i] *= fix[i % 2];
    }
  }

  __device__ __forceinline__ void multiply_values(const float (&powers)[kTiles][4], tune::u32 values) {
    unsigned shares[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) shares[t][i] = transposed_pair(powers[t][2 * i], powers[t][2 * i + 1]);
    }
//% if KV == "fp8"
    const tune::u32 row = values + lane % 16 * kRowBytes + lane / 16 * 16;
//% else
    const tune::u32 row = values + (lane % 8 + lane / 16 * 8) * kRowBytes + lane / 8 % 2 * 16;
//% endif
#pragma unroll
    for (int j = 0; j < kSteps; j += 2) {
      unsigned first[4];
      unsigned second[4];
//% if KV == "fp8"
      unsigned codes[4];
      tune::ldmatrix_trans(codes, row + j * 16);
      decode_values(first, second, codes);
//% else
      tune::ldmatrix_trans(first, row + j * 32);
      tune::ldmatrix_trans(second, row + j * 32 + 32);
//% endif
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        tune::mma<Operand>(sums[t][j], first, shares[t]);
        tune::mma<Operand>(sums[t][j + 1], second, shares[t]);
      }
    }
  }

  // Leaves the results as rows of kPartPitch floats.
  __device__ __forceinline__ void keep(float* rows) {
    __syncwarp();  // all lanes have read what was there
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int distance = 4; distance < kWarp; distance *= 2) {
          total[t][i] += __shfl_xor_sync(kAll, total[t][i], distance);
        }
        const int query = t * 8 + lane % 4 * 2 + i;
        if (query >= kQueries) continue;
        float* row = rows + query * kPartPitch;
        if (lane < 4) *reinterpret_cast<float2*>(row + kDim) = {top[t][i], total[t][i]};
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          float* to = row + j * 16 + lane / 4 * kColumnStep;
          to[0] = sums[t][j][i];
          to[kColumnApart] = sums[t][j][i + 2];
        }
      }
    }
  }
};
