// Rows of kWidth bf16 numbers that are divided by the root of their mean square: how their threads
// share them, load and store them, and find the scale. Needs kWidth, kElements (of a row, in each
// of its threads), kVectorBytes, kRows (of a block), kCluster (blocks that share a row), kResident,
// kNextInShared, kStages, kKeepWeights and kStreaming; and the macro GEMMA.
//% include "bfloat16.cuh"
//% include "lanes.cuh"
//% include "pdl.cuh"
//% include "words.cuh"
using Word = WordOf<kVectorBytes>::type;

constexpr float kBias = GEMMA ? 1.0f : 0.0f;
constexpr int kWordElements = sizeof(Word) / 2;
constexpr int kNeighbours = kVectorBytes / sizeof(Word);  // words side by side
constexpr int kWords = kElements / kWordElements;
constexpr int kShare = kWidth / kCluster;  // elements of a row in one block
constexpr int kShareWords = kShare / kWordElements;
constexpr int kWarps = (kShare + kElements * kWarp - 1) / (kElements * kWarp);  // of a row
constexpr int kThreads = kWarps * kWarp;                                        // of a row
constexpr int kBlock = kThreads * kRows;
constexpr int kMinBlocks = kResident > kBlock ? kResident / kBlock : 1;
constexpr bool kExact = kShareWords == kThreads * kWords;
constexpr int kPartials = kWarps * kCluster;  // sums of warps that make the sum of a row
constexpr int kRowBytes = kWidth * 2;
static_assert(kPartials <= kWarp);
static_assert(kCluster == 1 || kRows == 1);
static_assert(!kKeepWeights || sizeof(Word) == 16);
static_assert(!kNextInShared || (kRows == 1 && kWarps > 1));  // the barrier also frees a stage

// What one thread has of a row.
struct Row {
  Word words[kWords];
};

// Where a thread's i-th word is in the block's share of a row; `index` is the thread's in its row.
__device__ __forceinline__ int word_index(int i, int index) {
  return (i / kNeighbours * kThreads + index) * kNeighbours + i % kNeighbours;
}

__device__ __forceinline__ bool inside(int word) { return kExact || word < kShareWords; }

template <bool kOnce>
__device__ __forceinline__ Row load(const __nv_bfloat16* source, int index) {
  const Word* from = reinterpret_cast<const Word*>(source);
  Row row = {};
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int at = word_index(i, index);
    if (inside(at)) row.words[i] = load_word<kOnce>(from + at);
  }
  return row;
}

// A word of the weights, which every row needs: what streams by shall not drive them out.
__device__ __forceinline__ Word weight(const Word* from) {
#ifndef __CUDA_ON_HOST__
  if constexpr (kKeepWeights) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    uint4 word;
    asm volatile("ld.global.L1::evict_last.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(from), "l"(policy));
    return *reinterpret_cast<const Word*>(&word);
  }
#endif
  return *from;
}

__device__ __forceinline__ Row load_weights(const __nv_bfloat16* source, int index) {
  const Word* from = reinterpret_cast<const Word*>(source);
  Row row = {};
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int at = word_index(i, index);
    if (inside(at)) row.words[i] = weight(from + at);
  }
  return row;
}

__device__ __forceinline__ void prefetch(const __nv_bfloat16* source, int index) {
  const Word* from = reinterpret_cast<const Word*>(source);
#pragma unroll
  for (int i = 0; i < kWords; i += kNeighbours) {
    const int at = word_index(i, index);
    if (inside(at)) prefetch_line(from + at);
  }
}

// The sum of the partial sums of a row. A few are read by every thread, one after another: that is
// sooner done than shuffles, each of which waits for the one before.
__device__ __forceinline__ float total_of(const float* scratch, int lane) {
  if constexpr (kPartials <= 8) {
    float total = scratch[0];
#pragma unroll
    for (int i = 1; i < kPartials; ++i) total += scratch[i];
    return total;
  } else {
    constexpr int kSpan = kPartials <= 16 ? 16 : 32;
    return lanes_sum<kSpan>(lane % kSpan < kPartials ? scratch[lane % kSpan] : 0.0f);
  }
}

#ifdef __CUDA_ON_HOST__

// Clusters can't run there, and one thread's plain loop stands for a copy.
__device__ void arrive_at_cluster() {}
__device__ void wait_for_cluster() {}
__device__ void put(float*, int, float) {}
__device__ void prepare(unsigned long long*) {}
__device__ void expect(unsigned long long*, int) {}
__device__ void copy_row(uint4* to, const __nv_bfloat16* source, unsigned long long*) {
  const uint4* from = reinterpret_cast<const uint4*>(source);
  for (int i = 0; i < kRowBytes / 16; ++i) to[i] = from[i];
}
__device__ void wait_for(unsigned long long*, int) { __syncthreads(); }

#else

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Into the shared memory of another block of the cluster.
__device__ __forceinline__ void put(float* to, int rank, float value) {
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(to)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// Makes the barriers of the stages; by one thread, before any other uses them.
__device__ __forceinline__ void prepare(unsigned long long* full) {
  for (int s = 0; s < kStages; ++s) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(full + s)) : "memory");
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Says how many bytes will fill a stage.
__device__ __forceinline__ void expect(unsigned long long* full, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(full)),
               "r"(bytes)
               : "memory");
}

// Begins to copy a row into shared memory.
__device__ __forceinline__ void copy_row(uint4* to, const __nv_bfloat16* from,
                                         unsigned long long* full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(kRowBytes), "r"(shared_address(full))
      : "memory");
}

// Waits until a stage is full.
__device__ __forceinline__ void wait_for(unsigned long long* full, int parity) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(full)), "r"(parity)
        : "memory");
  }
}

#endif

// One over the root of a row's mean square, from each thread's part of the squares. `scratch` holds
// a float for each of the row's warps, and may be written again after the next barrier.
__device__ __forceinline__ float scale_of(float squares, float* scratch, float eps, int index,
                                          int rank) {
  float sum = lanes_sum<kWarp>(squares);
  if constexpr (kPartials > 1) {
    const int lane = index % kWarp;
    float* own = scratch + rank * kWarps + index / kWarp;
    if constexpr (kCluster > 1) {
      wait_for_cluster();  // all of its blocks have started
      if (lane < kCluster) put(own, lane, sum);
      arrive_at_cluster();
      wait_for_cluster();
    } else {
      if (lane == 0) *own = sum;
      __syncthreads();
    }
    sum = total_of(scratch, lane);
  }
  return rsqrtf(sum * (1.0f / kWidth) + eps);
}
