// A warp's part of a row: scores of its tokens, their powers, and sums of values. Tokens fill the rows of
// the products of keys and queries, columns of out those of values and probabilities; queries are the
// columns of both.
constexpr int kTiles = (kQueries + 7) / 8;  // of queries
constexpr int kSteps = kDim / 16;
constexpr int kTokenTiles = kTokens / 16;

// Two queries' numbers of one token become two tokens' numbers of one query.
__device__ __forceinline__ unsigned transposed_pair(float first, float second) {
  unsigned result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(rounded(first, second)));
  return result;
}

struct WarpPart {
  unsigned queries[kTiles][kSteps][2];
  float sums[kTiles][kSteps][4];
  float top[kTiles][2];
  float total[kTiles][2];  // of this lane's tokens
  int lane;

  // `q` is the first of the queries.
  __device__ __forceinline__ void begin(const Number* q) {
    lane = threadIdx.x % kWarp;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int query = t * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const Number* from = q + query * kDim + j * 16 + i * 8 + lane % 4 * 2;
          queries[t][j][i] = query < kQueries ? *reinterpret_cast<const unsigned*>(from) : 0;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][j][i] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        top[t][i] = __uint_as_float(0xff800000u);
        total[t][i] = 0.0f;
      }
    }
  }

  // Of the tokens of a stage the first `there` are some.
  __device__ __forceinline__ void add(tune::u32 stage, int there, float scale) {
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
          scores[k][t][i] = inside ? scores[k][t][i] * scale : __uint_as_float(0xff800000u);
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
    for (int j = 0; j < kSteps; ++j) {
      unsigned tokens[4];
      tune::ldmatrix(tokens, row + j * 32);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) tune::mma<tune::bf16>(j % 2 ? odd[t] : scores[t], tokens, queries[t][j]);
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
    const tune::u32 row = values + (lane % 8 + lane / 16 * 8) * kRowBytes + lane / 8 % 2 * 16;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      unsigned columns[4];
      tune::ldmatrix_trans(columns, row + j * 32);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) tune::mma<tune::bf16>(sums[t][j], columns, shares[t]);
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
          row[j * 16 + lane / 4] = sums[t][j][i];
          row[j * 16 + lane / 4 + 8] = sums[t][j][i + 2];
        }
      }
    }
  }
};
