// Keys and values on their way into shared memory: a ring of stages for each warp. Rows of a stage lie 16
// bytes further apart than they are long, so that ldmatrix meets no bank twice.
constexpr int kRowBytes = kDim * sizeof(Element) + 16;
constexpr int kTileBytes = kTokens * kRowBytes;
constexpr int kStageBytes = 2 * kTileBytes;  // keys, then values
constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kPieceElements = 16 / sizeof(Element);
constexpr int kPieces = kDim / kPieceElements;  // copies of 16 bytes for a token
constexpr int kTogether = kPieces < kWarp ? kWarp / kPieces : 1;  // tokens of one copy by all lanes
static_assert(kQueries * kPartPitch * 4 <= kStageBytes, "results of a warp are kept in a stage");

//% set hint = ".L2::cache_hint" if streaming else ""
//% set promotion = ".L2::" ~ l2_promotion ~ "B" if l2_promotion else ""
// 16 bytes, or as many zeros.
__device__ __forceinline__ void copy_piece(tune::u32 to, const Element* from, bool there, tune::u64 policy) {
  const tune::u32 bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global@{ hint }@@{ promotion }@ [%0], [%1], 16, %2@{ ", %3" if streaming else "" }@;"
               ::"r"(to), "l"(from), "r"(bytes)/*% if streaming %*/, "l"(policy)/*% endif %*/ : "memory");
}

struct Ring {
  Share ahead;  // what is copied next
  const Element* k;
  const Element* v;
  const int* page_table;
  int width;
  unsigned char* memory;  // of this warp
  tune::u32 start_address;
  tune::u64 policy;
  int lane;
  int warp_t;
  int warp_h;
  int place;  // of a lane's token of the next stage among all that the pages hold
  int stage;  // that is multiplied next
  tune::u32 first_fill;  // of a lane: where its copies of the first stage go
  // and those of the next one. Carried, because ptxas 13.0.88 makes an illegal instruction of a copy with a
  // policy whose address is a lane's and the warp's, `start + stage * bytes`, added together.
  tune::u32 fill;

  __device__ __forceinline__ Ring(const Arguments& given, const Share& share, unsigned char* all)
      : ahead(share), k(given.k), v(given.v), page_table(given.page_table), width(given.width), stage(0) {
    const int warp = threadIdx.x / kWarp;
    lane = threadIdx.x % kWarp;
    warp_t = warp % kWarpsT;
    warp_h = warp / kWarpsT;
    memory = all + warp * kRingBytes;
    start_address = tune::shared_address(memory);
    first_fill = start_address + lane / kPieces * kRowBytes + lane % kPieces * 16;
    fill = first_fill;
    policy = @{ "tune::l2_evict_first()" if streaming else "0" }@;
    place = find_place(ahead);
  }

  __device__ __forceinline__ int first_token(int step) const { return step * kStep + warp_t * kTokens; }

  // Does not need the length: what the table holds behind the last page is not used.
  __device__ __forceinline__ int find_place(const Share& share) const {
    const int token = first_token(share.step) + lane % kTokens;
    const int page = min(token / kPage, width - 1);
    return page_table[static_cast<size_t>(share.sequence) * width + page] * kPage + token % kPage;
  }

  __device__ __forceinline__ size_t head_offset(const Share& share) const {
    return static_cast<size_t>(share.group * kWarpsH + warp_h) * kDim;
  }

  // Asks for the first stages in the L2.
  __device__ __forceinline__ void prefetch() const {
    Share share = ahead;
    for (int i = 0; i < kStages - 1 && share.left > 0; ++i) {
      const bool there = first_token(share.step) + lane % kTokens < share.length;
      const size_t from = static_cast<size_t>(find_place(share)) * kPitch + head_offset(share);
      if (there) {
        for (int which = lane / kTokens; which < 2; which += kWarp / kTokens) {
#pragma unroll
          for (int line = 0; line < kDim; line += 128 / sizeof(Element)) prefetch_line((which == 0 ? k : v) + from + line);
        }
      }
      share.advance(1);
    }
  }

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) load();
  }

  __device__ __forceinline__ void load() {
    if (ahead.left > 0) {
      const int there = ahead.length - first_token(ahead.step);  // tokens of this stage
      if (there > 0) {
        const int own = lane % kTokens < there ? place : -1;
        const int first = lane / kPieces;
        const size_t head = head_offset(ahead) + lane % kPieces * kPieceElements;
#pragma unroll
        for (int token = 0; token < kTokens; token += kTogether) {
          const int from = __shfl_sync(kAll, own, token + first);
          const size_t offset = static_cast<size_t>(max(from, 0)) * kPitch + head;
          copy_piece(fill + token * kRowBytes, k + offset, from >= 0, policy);
          copy_piece(fill + kTileBytes + token * kRowBytes, v + offset, from >= 0, policy);
        }
      }
      ahead.advance(1);
      if (ahead.left > 0) place = find_place(ahead);
    }
    tune::cp_async_commit();
    fill = fill - first_fill == (kStages - 1) * kStageBytes ? first_fill : fill + kStageBytes;
  }

  // Waits for a stage, fills the one before it again, and returns its address.
  __device__ __forceinline__ tune::u32 next() {
    tune::cp_async_wait<kStages - 2>();
    __syncwarp();
    load();
    const tune::u32 address = start_address + stage * kStageBytes;
    if (++stage == kStages) stage = 0;
    return address;
  }

  // Where the stage that was multiplied last lies in every warp's ring.
  __device__ __forceinline__ int idle_offset() const {
    return (stage == 0 ? kStages - 1 : stage - 1) * kStageBytes;
  }
};
