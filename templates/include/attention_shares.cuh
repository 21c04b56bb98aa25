// What a block works on: steps of kStep tokens, of rows, each a sequence and a group of key heads.
// What is copied ahead of the multiplies has a cursor of its own.
//% if schedule == "chunks"
// Of a part of a row.
__device__ __forceinline__ int chunk_steps(int longest) {
  return max(1, (steps_of(longest) + kSplits - 1) / kSplits);
}

// A sequence may be longer than the launch was told: the last part has all that remains.
__device__ __forceinline__ int parts_of(int steps, int chunk) {
  return min(kSplits, (steps + chunk - 1) / chunk);
}

// Grid: groups, parts, sequences.
struct Share {
  int sequence;
  int group;
  int length;  // of the sequence, in tokens
  int steps;   // and in steps
  int step;    // the next one
  int left;    // steps that are still to do
  int parts;   // that have any of this row's steps

  __device__ __forceinline__ explicit Share(const Arguments& given) {
    const int chunk = chunk_steps(given.longest);
    sequence = blockIdx.z;
    group = blockIdx.x;
    length = given.lengths[sequence];
    steps = steps_of(length);
    step = blockIdx.y * chunk;
    const int end = blockIdx.y == kSplits - 1 ? steps : min(steps, step + chunk);
    left = max(0, end - step);
    parts = parts_of(steps, chunk);
  }

  __device__ __forceinline__ int first_row() const { return (sequence * kHeads + group * kWarpsH) * kQueries; }

  __device__ __forceinline__ void advance(int count) {
    step += count;
    left -= count;
  }
};

// Where the parts of a row lie in scratch.
struct Slots {
  int count;
  int first;

  __device__ __forceinline__ int operator[](int part) const { return first + part; }
};

__device__ __forceinline__ Slots find_slots(const Share& share) {
  return {share.parts, (share.sequence * kGroups + share.group) * kSplits};
}

__device__ __forceinline__ int own_slot(const Share& share) { return find_slots(share)[blockIdx.y]; }
//% else
constexpr int kMostSequences = 512;

// Steps count in the order of sequence, group and step; with teams the groups have a block each. A unit
// is a block, or those of a team, and all units have the same number of steps, to one.
struct Share {
  int sequence;
  int group;
  int length;
  int steps;
  int step;
  int left;
  int at;     // the next step among all
  int total;  // of all steps
  int units;  // that have any
  bool began; // whether a row of this block has ended
  const int* lengths;  // in shared memory

  __device__ __forceinline__ int length_of(int which) const { return lengths[which]; }

  // All threads.
  __device__ __forceinline__ explicit Share(const Arguments& given) {
    __shared__ int copied[kMostSequences];
    for (int i = threadIdx.x; i < given.sequences; i += kThreads) copied[i] = given.lengths[i];
    __syncthreads();
    lengths = copied;
    const int lane = threadIdx.x % kWarp;
    int sum = 0;
    for (int i = lane; i < given.sequences; i += kWarp) sum += steps_of(copied[i]);
    total = __reduce_add_sync(kAll, sum) * kSide;
    units = min(static_cast<int>(gridDim.x) / kTeam, total);
    const int unit = blockIdx.x / kTeam;
    sequence = group = length = steps = step = left = at = 0;
    began = false;
    if (unit >= units) return;
    at = first_step(unit);
    left = first_step(unit + 1) - at;
    find_row(given.sequences, lane);
  }

  __device__ __forceinline__ int first_row() const { return (sequence * kHeads + group * kWarpsH) * kQueries; }

  __device__ __forceinline__ int first_step(int unit) const {
    return static_cast<int>(static_cast<long long>(unit) * total / units);
  }

  // The unit that has a step.
  __device__ __forceinline__ int unit_of(int which) const {
    return static_cast<int>((static_cast<long long>(which + 1) * units - 1) / total);
  }

  // Of 32 sequences at a time: the first up to whose end there are more steps than come before.
  __device__ __forceinline__ void find_row(int sequences, int lane) {
    int before = 0;
    for (int first = 0;; first += kWarp) {
      const int own = first + lane < sequences ? steps_of(lengths[first + lane]) * kSide : 0;
      int sum = own;
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int lower = __shfl_up_sync(kAll, sum, distance);
        if (lane >= distance) sum += lower;
      }
      const unsigned past = __ballot_sync(kAll, before + sum > at);
      if (past != 0) {
        const int which = __ffs(past) - 1;
        sequence = first + which;
        step = at - before - __shfl_sync(kAll, sum - own, which);
        break;
      }
      before += __shfl_sync(kAll, sum, kWarp - 1);
    }
    length = lengths[sequence];
    steps = steps_of(length);
    group = kTeams ? static_cast<int>(blockIdx.x) % kTeam : step / steps;
    if constexpr (!kTeams) step -= group * steps;
  }

  __device__ __forceinline__ void advance(int count) {
    at += count;
    step += count;
    left -= count;
    if (step < steps || left == 0) return;
    step = 0;
    began = true;
    if (!kTeams && ++group < kGroups) return;
    if constexpr (!kTeams) group = 0;
    do {
      length = lengths[++sequence];
    } while (length == 0);
    steps = steps_of(length);
  }
};

// A block leaves at most two parts: of its first row, which began in a block before, and of its last.
struct Slots {
  int count;
  int unit;   // that has the first part
  int late;   // for which the row is the last one
  int side;

  __device__ __forceinline__ int operator[](int part) const {
    return ((unit + part) * kTeam + side) * 2 + (part == 0 ? late : 0);
  }
};

__device__ __forceinline__ Slots find_slots(const Share& share) {
  const int first = share.at - share.step;
  const int unit = share.unit_of(first);
  const int last = share.unit_of(first + share.steps - 1);
  return {last - unit + 1, unit, share.first_step(unit) < first, static_cast<int>(blockIdx.x) % kTeam};
}

__device__ __forceinline__ int own_slot(const Share& share) { return blockIdx.x * 2 + share.began; }
//% endif
