// Products of weights that go from memory into registers, without shared memory between.
//
// A thread has eight neighbours along K of a row in each word of 16 bytes. On the tensor cores the
// order along K is free, as long as it is that of x too: of the 32 of K that four lanes have, the
// first multiply takes the first four of each lane and the second the others. With dots a warp has
// 256 of K, and every thread a part of every sum.
constexpr int kPieceDepth = kDots ? 8 * kWarp : 32;           // of K, in a warp, by one word each
constexpr int kPieces = kTileK / kWarpsK / kPieceDepth;       // of a stage
constexpr int kWarpRows = kTileN / kWarpsN;                   // of w, in a warp
constexpr int kThreadRows = kDots ? kWarpRows : kWarpRows / 8;
constexpr int kThreadTokens = kDots ? kTokens : kTokens / 8;  // words of x by a thread, for a piece
constexpr int kMostStages = (kAllStages + kSplit - 1) / kSplit;  // of a block
constexpr int kTokenPitch = kMostStages * kTileK + 32;        // rows lie in different banks
constexpr int kWorkBytes = kStagedTokens ? kTokens * kTokenPitch * 2 : 0;
static_assert(kPieces * kPieceDepth * kWarpsK == kTileK);
static_assert(kThreadRows * kWarpsN * (kDots ? 1 : 8) == kTileN);
static_assert(kDots || (kThreadRows % 2 == 0 && kTokens % 8 == 0));

struct Weights {
  uint4 words[kPieces][kThreadRows];
};

struct Tokens {
  uint4 words[kPieces][kThreadTokens];
};

//% if path == "dots"
struct Sums {
  float values[kThreadRows][kTokens];
};
//% else
struct Sums {
  float values[kThreadRows / 2][kThreadTokens][4];
};
//% endif

// 16 bytes, asked for where it is written: a load through the read-only path (ld.global.nc) may be
// moved past the wait for the launches before.
__device__ __forceinline__ uint4 load_weight(const @{ element }@* from, tune::u64 policy) {
#ifdef __CUDA_ON_HOST__
  return *reinterpret_cast<const uint4*>(from);
#else
  uint4 word;
  if constexpr (kStreaming) {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "l"(from), "l"(policy));
  } else {
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "l"(from));
  }
  return word;
#endif
}

__device__ __forceinline__ uint4 load_token(const @{ element }@* from) {
#ifdef __CUDA_ON_HOST__
  return *reinterpret_cast<const uint4*>(from);
#else
  uint4 word;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "l"(from) : "memory");
  return word;
#endif
}

// Where a thread's words begin.
struct Place {
  int row;    // of w, in the block
  int token;  // of x
  int k;      // in a stage
};

__device__ __forceinline__ Place place_of(int warp, int lane) {
  const int depth = warp % kWarpsK * kPieces * kPieceDepth;
  const int row = warp / kWarpsK * kWarpRows;
  if constexpr (kDots) return {row, 0, depth + lane * 8};
  return {row + lane / 4, lane / 4, depth + lane % 4 * 8};
}

__device__ __forceinline__ void load(Weights& weights, const Task& task, const Place& place,
                                     int stage, tune::u64 policy) {
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      const int row = place.row + r * (kDots ? 1 : 8);
      weights.words[p][r] =
          load_weight(task.weights(row) + stage * kTileK + place.k + p * kPieceDepth, policy);
    }
  }
}

__device__ __forceinline__ void load(Tokens& tokens, const Task& task, const Place& place,
                                     const @{ element }@* staged, int stage) {
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int t = 0; t < kThreadTokens; ++t) {
      const int token = min(place.token + t * (kDots ? 1 : 8), task.tokens - 1);
      const int k = stage * kTileK + place.k + p * kPieceDepth;
      if constexpr (kStagedTokens) {
        tokens.words[p][t] = *reinterpret_cast<const uint4*>(staged + token * kTokenPitch + k);
      } else {
        tokens.words[p][t] = load_token(task.x + static_cast<size_t>(token) * kDepth + k);
      }
    }
  }
}

//% if path == "dots"
__device__ __forceinline__ void multiply(Sums& sums, const Weights& weights, const Tokens& tokens) {
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const unsigned* x = reinterpret_cast<const unsigned*>(&tokens.words[p][t]);
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        const unsigned* w = reinterpret_cast<const unsigned*>(&weights.words[p][r]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums.values[r][t] = fmaf(low(w[i]), low(x[i]), sums.values[r][t]);
          sums.values[r][t] = fmaf(high(w[i]), high(x[i]), sums.values[r][t]);
        }
      }
    }
  }
}

__device__ __forceinline__ void keep(float* parts, const Sums& sums, int warp, int lane, int tokens) {
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = lanes_sum<kWarp>(sums.values[r][t]);
      if (lane == 0 && t < tokens) {
        part(parts, warp % kWarpsK, t, warp / kWarpsK * kWarpRows + r) = sum;
      }
    }
  }
}

//% elif scales == "block"
// Adds up 128 of K at most before the scales of those are multiplied in. `scales`: of the first token,
// where the warp's part of the stage begins.
__device__ __forceinline__ void multiply(Sums& sums, const Weights& weights, const Tokens& tokens,
                                         const float* scales) {
  constexpr int kTogether = kPieces < 2 ? 1 : 2;
#pragma unroll
  for (int p = 0; p < kPieces; p += kTogether) {
#pragma unroll
    for (int t = 0; t < kThreadTokens; ++t) {
      const float2 scale = scales_of(scales + p / kTogether * kTokens, t);
#pragma unroll
      for (int r = 0; r < kThreadRows / 2; ++r) {
        float fresh[4] = {};
#pragma unroll
        for (int q = p; q < p + kTogether; ++q) {
          const uint4 upper = weights.words[q][2 * r];
          const uint4 lower = weights.words[q][2 * r + 1];
          const uint4 x = tokens.words[q][t];
          tune::mma<@{ operand }@>(fresh, {upper.x, lower.x, upper.y, lower.y}, {x.x, x.y});
          tune::mma<@{ operand }@>(fresh, {upper.z, lower.z, upper.w, lower.w}, {x.z, x.w});
        }
        add_scaled(sums.values[r][t], fresh, scale);
      }
    }
  }
}

//% else
__device__ __forceinline__ void multiply(Sums& sums, const Weights& weights, const Tokens& tokens) {
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int r = 0; r < kThreadRows / 2; ++r) {
      const uint4 upper = weights.words[p][2 * r];
      const uint4 lower = weights.words[p][2 * r + 1];
      const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y};
      const unsigned second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
      for (int t = 0; t < kThreadTokens; ++t) {
        const uint4 x = tokens.words[p][t];
        tune::mma<@{ operand }@>(sums.values[r][t], first, {x.x, x.y});
        tune::mma<@{ operand }@>(sums.values[r][t], second, {x.z, x.w});
      }
    }
  }
}

//% endif
//% if path != "dots"
__device__ __forceinline__ void keep(float* parts, const Sums& sums, int warp, int lane, int tokens) {
  keep_tiles(parts, sums.values, warp / kWarpsK * kWarpRows, warp % kWarpsK, lane, tokens);
}

//% endif
__device__ __forceinline__ void add_products(unsigned char* work, float* parts, const Task& task) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const Place place = place_of(warp, lane);
  const tune::u64 policy = kStreaming ? tune::l2_evict_first() : 0;
  const @{ element }@* staged = reinterpret_cast<const @{ element }@*>(work);

  Weights weights[kStages];
  Tokens tokens[kStagedTokens ? 1 : kStages];
  if constexpr (kEarlyLoads) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      if (s < task.stages) load(weights[s], task, place, s, policy);
    }
  }
  wait_for_inputs();
//% if scales != "none"
  stage_scales(task);
//% endif
  if constexpr (kStagedTokens) {
    const int vectors = task.stages * (kTileK / 8);
    for (int i = threadIdx.x; i < task.tokens * vectors; i += kThreads) {
      const int token = i / vectors;
      const int k = i % vectors * 8;
      tune::cp_async<16>(tune::shared_address(staged + token * kTokenPitch + k),
                         task.x + static_cast<size_t>(token) * kDepth + k);
    }
    tune::cp_async_commit();
  }
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    if (s >= task.stages) break;
    if constexpr (!kEarlyLoads) load(weights[s], task, place, s, policy);
    if constexpr (!kStagedTokens) load(tokens[s], task, place, staged, s);
  }
  if constexpr (kStagedTokens) {
    tune::cp_async_wait<0>();
    __syncthreads();
  }
//% if scales == "block"
  if constexpr (!kStagedTokens) __syncthreads();
//% endif

  Sums sums = {};
//% if scales == "block"
  const int depth = warp % kWarpsK * kPieces * kPieceDepth;
//% endif
#pragma unroll 1
  for (int first = 0; first < task.stages; first += kStages) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      const int stage = first + s;
      if (stage >= task.stages) break;
      Tokens& x = tokens[kStagedTokens ? 0 : s];
      if constexpr (kStagedTokens) load(x, task, place, staged, stage);
//% if scales == "block"
      multiply(sums, weights[s], x, task.scales + (stage * kTileK + depth) / kScaleDepth * kTokens);
//% else
      multiply(sums, weights[s], x);
//% endif
      if (stage + kStages < task.stages) {
        load(weights[s], task, place, stage + kStages, policy);
        if constexpr (!kStagedTokens) load(x, task, place, staged, stage + kStages);
      }
    }
  }
  keep(parts, sums, warp, lane, task.tokens);
}
