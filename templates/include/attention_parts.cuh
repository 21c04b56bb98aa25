// Results of a part of a sequence, and how several become one: by the warps of a block in shared memory,
// and by blocks in scratch or in the shared memory of their cluster.
constexpr int kColumns = 4;  // of out, that a thread has at a time
constexpr int kItems = kDim / kColumns;
constexpr int kPartPitch = kDim + 4;  // floats of a row: its sums, the largest score, the sum of powers

struct Part {
  float top;  // -inf where there are no tokens
  float total;
  float4 sums;

  __device__ __forceinline__ void add(const Part& other) {
    const float larger = fmaxf(top, other.top);
    const float mine = power(top - larger);
    const float theirs = power(other.top - larger);
    top = larger;
    total = total * mine + other.total * theirs;
    sums.x = sums.x * mine + other.sums.x * theirs;
    sums.y = sums.y * mine + other.sums.y * theirs;
    sums.z = sums.z * mine + other.sums.z * theirs;
    sums.w = sums.w * mine + other.sums.w * theirs;
  }
};

__device__ __forceinline__ Part read_part(const float* row, int item) {
  const float2 both = *reinterpret_cast<const float2*>(row + kDim);
  return {both.x, both.y, *reinterpret_cast<const float4*>(row + item * kColumns)};
}

__device__ __forceinline__ void write_part(float* row, int item, const Part& part) {
  *reinterpret_cast<float4*>(row + item * kColumns) = part.sums;
  if (item == 0) *reinterpret_cast<float2*>(row + kDim) = {part.top, part.total};
}

// `row` is one of the group's.
__device__ __forceinline__ void store_part(const Arguments& given, int sequence, int group, int row, int item,
                                           const Part& part) {
  const float share = given.v_scale / part.total;
  const uint2 word = {rounded(part.sums.x * share, part.sums.y * share),
                      rounded(part.sums.z * share, part.sums.w * share)};
  const size_t place = static_cast<size_t>(sequence * kHeads + group * kWarpsH) * kQueries + row;
  *reinterpret_cast<uint2*>(given.out + place * kDim + item * kColumns) = word;
}

__device__ __forceinline__ float* slot_row(float* partial, int slot, int row) {
  return partial + (static_cast<size_t>(slot) * kRows + row) * kPartPitch;
}

// Puts a row's parts together, by all threads.
__device__ __forceinline__ void merge_row(const Arguments& given, int sequence, int group, const Slots& slots) {
  for (int i = threadIdx.x; i < kRows * kItems; i += kThreads) {
    const int row = i / kItems;
    const int item = i % kItems;
    Part part = read_part(slot_row(given.partial, slots[0], row), item);
#pragma unroll 4
    for (int p = 1; p < slots.count; ++p) part.add(read_part(slot_row(given.partial, slots[p], row), item));
    store_part(given, sequence, group, row, item, part);
  }
}
//% if combine == "cluster"

// Each block of the cluster, which are the parts of a row, puts some of its columns together; `own` is
// where every one has left its part.
__device__ __forceinline__ void merge_in_cluster(const Arguments& given, const Share& share, tune::u32 own) {
  tune::cluster_sync();
  for (int i = threadIdx.x * kSplits + blockIdx.y; i < kRows * kItems; i += kThreads * kSplits) {
    const int row = i / kItems;
    const int item = i % kItems;
    const auto read = [&](int block) {
      const tune::u32 from = tune::map_shared(own + row * kPartPitch * 4, block);
      const float4 both = tune::cluster_load(from + kDim * 4);
      return Part{both.x, both.y, tune::cluster_load(from + item * kColumns * 4)};
    };
    Part part = read(0);
    for (int block = 1; block < share.parts; ++block) part.add(read(block));
    store_part(given, share.sequence, share.group, row, item, part);
  }
  tune::cluster_sync();  // others have read what this block has
}
//% endif
