// Shuffles, votes, matches and reductions among the lanes of a warp.
#pragma once

namespace cuda_on_host {

// A lane that isn't there gives NaN, or -1: CUDA leaves its value undefined.
constexpr unsigned long long kNoValue = ~0ull;

inline unsigned lane_of(unsigned thread) { return thread % kWarp; }

inline Thread* lanes_of(unsigned thread) { return threads + thread / kWarp * kWarp; }

inline unsigned lanes_in(const Thread* lanes) {
  const unsigned left = thread_count - static_cast<unsigned>(lanes - threads);
  return left < kWarp ? left : kWarp;
}

#pragma GCC visibility push(hidden)
unsigned long long in_warp(const char* name, Finish finish, Lanes mask, unsigned long long value,
                           unsigned source, int line, bool loose = false);
#pragma GCC visibility pop

inline void finish_sync(Thread*, Lanes) {}

inline void finish_shuffle(Thread* lanes, Lanes present) {
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(present >> i & 1)) continue;
    const unsigned source = lanes[i].source;
    lanes[i].result = present >> source & 1 ? lanes[source].value : kNoValue;
  }
}

inline void finish_ballot(Thread* lanes, Lanes present) {
  Lanes votes = 0;
  for (unsigned i = 0; i < kWarp; ++i)
    if ((present >> i & 1) && lanes[i].value) votes |= Lanes(1) << i;
  for (unsigned i = 0; i < kWarp; ++i)
    if (present >> i & 1) lanes[i].result = votes;
}

inline void finish_match(Thread* lanes, Lanes present) {
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(present >> i & 1)) continue;
    Lanes same = 0;
    for (unsigned k = 0; k < kWarp; ++k)
      if ((present >> k & 1) && lanes[k].value == lanes[i].value) same |= Lanes(1) << k;
    lanes[i].result = same;
  }
}

template <class T, class Combine>
void finish_reduce(Thread* lanes, Lanes present) {
  T total = T();
  bool first = true;
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(present >> i & 1)) continue;
    const T value = static_cast<T>(lanes[i].value);
    total = first ? value : Combine()(total, value);
    first = false;
  }
  for (unsigned i = 0; i < kWarp; ++i)
    if (present >> i & 1) lanes[i].result = static_cast<unsigned long long>(total);
}

template <class T>
unsigned long long to_bits(const T& value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value,
                "a warp operation exchanges values of at most 8 bytes");
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
T from_bits(unsigned long long bits) {
  T value;
  memcpy(static_cast<void*>(&value), &bits, sizeof value);
  return value;
}

template <class T>
T shuffle(const char* name, Lanes mask, T value, unsigned source, int line, bool loose = false) {
  return from_bits<T>(in_warp(name, finish_shuffle, mask, to_bits(value), source, line, loose));
}

struct Add { template <class T> ON_HOST_WRAPS T operator()(T a, T b) const { return a + b; } };
struct Least { template <class T> T operator()(T a, T b) const { return b < a ? b : a; } };
struct Greatest { template <class T> T operator()(T a, T b) const { return a < b ? b : a; } };
struct And { template <class T> T operator()(T a, T b) const { return a & b; } };
struct Or { template <class T> T operator()(T a, T b) const { return a | b; } };
struct Xor { template <class T> T operator()(T a, T b) const { return a ^ b; } };

}  // namespace cuda_on_host

inline void __syncwarp(cuda_on_host::Lanes mask = ~cuda_on_host::Lanes(0), ON_HOST_LINE) {
  cuda_on_host::in_warp("__syncwarp", cuda_on_host::finish_sync, mask, 0, 0, line);
}

template <class T>
T __shfl_sync(cuda_on_host::Lanes mask, T value, int source, int width = warpSize, ON_HOST_LINE) {
  const int lane = cuda_on_host::lane_of(cuda_on_host::current);
  const int from = (lane & ~(width - 1)) + (source & (width - 1));
  return cuda_on_host::shuffle("__shfl_sync", mask, value, from, line);
}

template <class T>
T __shfl_up_sync(cuda_on_host::Lanes mask, T value, unsigned delta, int width = warpSize, ON_HOST_LINE) {
  const int lane = cuda_on_host::lane_of(cuda_on_host::current);
  const int from = lane - static_cast<int>(delta);
  const bool inside = delta < warpSize && from >= (lane & ~(width - 1));
  return cuda_on_host::shuffle("__shfl_up_sync", mask, value, inside ? from : lane, line);
}

template <class T>
T __shfl_down_sync(cuda_on_host::Lanes mask, T value, unsigned delta, int width = warpSize, ON_HOST_LINE) {
  const int lane = cuda_on_host::lane_of(cuda_on_host::current);
  const int from = lane + static_cast<int>(delta);
  const bool inside = delta < warpSize && from < (lane & ~(width - 1)) + width;
  return cuda_on_host::shuffle("__shfl_down_sync", mask, value, inside ? from : lane, line);
}

template <class T>
T __shfl_xor_sync(cuda_on_host::Lanes mask, T value, int lane_mask, int width = warpSize, ON_HOST_LINE) {
  const int lane = cuda_on_host::lane_of(cuda_on_host::current);
  const int from = lane ^ lane_mask;
  // A lane of an earlier group may be read, one of a later group may not.
  const bool inside = from < (lane & ~(width - 1)) + width && from >= 0;
  return cuda_on_host::shuffle("__shfl_xor_sync", mask, value, inside ? from : lane, line);
}

inline cuda_on_host::Lanes __ballot_sync(cuda_on_host::Lanes mask, int predicate, ON_HOST_LINE) {
  return static_cast<cuda_on_host::Lanes>(cuda_on_host::in_warp(
      "__ballot_sync", cuda_on_host::finish_ballot, mask, predicate != 0, 0, line));
}

inline int __any_sync(cuda_on_host::Lanes mask, int predicate, ON_HOST_LINE) {
  return cuda_on_host::in_warp("__any_sync", cuda_on_host::finish_ballot, mask, predicate != 0, 0,
                               line) != 0;
}

inline int __all_sync(cuda_on_host::Lanes mask, int predicate, ON_HOST_LINE) {
  const unsigned long long votes = cuda_on_host::in_warp(
      "__all_sync", cuda_on_host::finish_ballot, mask, predicate != 0, 0, line);
  return votes == cuda_on_host::threads[cuda_on_host::current].present;
}

template <class T>
cuda_on_host::Lanes __match_any_sync(cuda_on_host::Lanes mask, T value, ON_HOST_LINE) {
  return static_cast<cuda_on_host::Lanes>(
      cuda_on_host::in_warp("__match_any_sync", cuda_on_host::finish_match, mask,
                            cuda_on_host::to_bits(value), 0, line));
}

template <class T>
cuda_on_host::Lanes __match_all_sync(cuda_on_host::Lanes mask, T value, int* all, ON_HOST_LINE) {
  const unsigned long long found =
      cuda_on_host::in_warp("__match_all_sync", cuda_on_host::finish_match, mask,
                            cuda_on_host::to_bits(value), 0, line);
  *all = found == cuda_on_host::threads[cuda_on_host::current].present;
  return *all ? static_cast<cuda_on_host::Lanes>(found) : 0;
}

// The lanes that have not ended: all that a program may rely on.
inline cuda_on_host::Lanes __activemask() {
  const cuda_on_host::Thread* lanes = cuda_on_host::lanes_of(cuda_on_host::current);
  cuda_on_host::Lanes mask = 0;
  for (unsigned i = 0; i < cuda_on_host::lanes_in(lanes); ++i)
    if (lanes[i].state != cuda_on_host::State::exited) mask |= cuda_on_host::Lanes(1) << i;
  return mask;
}

#define ON_HOST_REDUCE(NAME, COMBINE, TYPE)                                              \
  inline TYPE __reduce_##NAME##_sync(cuda_on_host::Lanes mask, TYPE value, ON_HOST_LINE) {          \
    return static_cast<TYPE>(cuda_on_host::in_warp(                                      \
        "__reduce_" #NAME "_sync", cuda_on_host::finish_reduce<TYPE, cuda_on_host::COMBINE>, \
        mask, static_cast<unsigned long long>(value), 0, line));                         \
  }
ON_HOST_REDUCE(add, Add, unsigned)
ON_HOST_REDUCE(add, Add, int)
ON_HOST_REDUCE(min, Least, unsigned)
ON_HOST_REDUCE(min, Least, int)
ON_HOST_REDUCE(max, Greatest, unsigned)
ON_HOST_REDUCE(max, Greatest, int)
ON_HOST_REDUCE(and, And, unsigned)
ON_HOST_REDUCE(or, Or, unsigned)
ON_HOST_REDUCE(xor, Xor, unsigned)
#undef ON_HOST_REDUCE
