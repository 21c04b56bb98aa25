// CUB's reductions, scans, sorts, loads and stores of a block or a warp, through shared memory.
//
// Where only the first thread's result is defined, the others get their own input back. Sums are
// taken in pairs, so that their rounding is that of a tree, as on a GPU.
#pragma once

#include "cuda_on_host.h"

#include <algorithm>
#include <cuda/functional>
#include <functional>

#define CUB_VERSION 300000

namespace cub {

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS,
  BLOCK_REDUCE_WARP_REDUCTIONS_NONDETERMINISTIC
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};
struct NullType {};

// A number's bits in an order that unsigned numbers have.
template <class T>
struct Traits {
  using UnsignedBits = std::conditional_t<sizeof(T) == 1, unsigned char, std::conditional_t<sizeof(T) == 2, unsigned short,
                       std::conditional_t<sizeof(T) == 4, unsigned int, unsigned long long>>>;
  static constexpr UnsignedBits kSign = static_cast<UnsignedBits>(UnsignedBits(1) << (8 * sizeof(T) - 1));
  static constexpr bool kFloats = !std::is_integral<T>::value, kSigned = std::is_signed<T>::value;
  static UnsignedBits TwiddleIn(UnsignedBits key) {
    if (kFloats) return static_cast<UnsignedBits>(key ^ (key & kSign ? ~UnsignedBits(0) : kSign));
    return static_cast<UnsignedBits>(kSigned ? key ^ kSign : key);
  }
  static UnsignedBits TwiddleOut(UnsignedBits key) {
    if (kFloats) return static_cast<UnsignedBits>(key ^ (key & kSign ? kSign : ~UnsignedBits(0)));
    return TwiddleIn(key);
  }
};

template <class K, class V>
struct KeyValuePair {
  using Key = K;
  using Value = V;
  K key;
  V value;
};

struct ArgMax {
  template <class P>
  P operator()(const P& a, const P& b) const {
    return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};

struct ArgMin {
  template <class P>
  P operator()(const P& a, const P& b) const {
    return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};

inline unsigned LaneId() { return cuda_on_host::lane_of(cuda_on_host::current); }
inline unsigned WarpId() { return cuda_on_host::current / 32; }

namespace on_host {

// Bytes, so that a __shared__ variable and a union may hold it, whatever T is.
template <class T, int N>
struct Storage {
  alignas(alignof(T) > 16 ? alignof(T) : 16) unsigned char bytes[N * sizeof(T)];
  T& operator[](int i) { return reinterpret_cast<T*>(bytes)[i]; }
};

struct Add { template <class T> T operator()(const T& a, const T& b) const { return a + b; } };
struct Greatest { template <class T> T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
struct Least { template <class T> T operator()(const T& a, const T& b) const { return b < a ? b : a; } };

inline int least(int a, int b) { return b < a ? b : a; }

template <class Values, class Op>
auto in_pairs(Values& values, int count, Op op) {
  for (int step = 1; step < count; step *= 2)
    for (int i = 0; i + step < count; i += 2 * step) values[i] = op(values[i], values[i + step]);
  return values[0];
}

// The threads of a block, numbered along x first, and what they wait at.
template <int THREADS>
struct Block {
  int line;
  int me() const { return static_cast<int>(cuda_on_host::current); }
  int count() const { return least(THREADS, static_cast<int>(cuda_on_host::thread_count)); }
  void wait() const { __syncthreads(line); }
};

// The lanes of a warp, or of a part of one.
template <int LANES>
struct Warp {
  int line;
  int me() const { return static_cast<int>(cuda_on_host::current) % 32 % LANES; }
  int count() const {
    const int first = static_cast<int>(cuda_on_host::current) - me();
    return least(LANES, static_cast<int>(cuda_on_host::thread_count) - first);
  }
  void wait() const {
    const unsigned all = LANES == 32 ? 0xffffffffu : (1u << LANES % 32) - 1;
    __syncwarp(all << (LaneId() - me()), line);
  }
};

template <class T, class Group, int N>
class Reduction {
 public:
  using TempStorage = Storage<T, N>;
  Reduction(TempStorage& storage, ON_HOST_LINE) : storage_(storage), group_{line} {}

  template <class Op>
  T Reduce(T input, Op op, int valid = N) {
    storage_[group_.me()] = input;
    group_.wait();
    if (group_.me() == 0) input = in_pairs(storage_, least(valid, group_.count()), op);
    return input;
  }
  template <int ITEMS, class Op>
  T Reduce(T (&inputs)[ITEMS], Op op) {
    T own = inputs[0];
    for (int i = 1; i < ITEMS; ++i) own = op(own, inputs[i]);
    return Reduce(own, op);
  }
  T Sum(T input, int valid = N) { return Reduce(input, Add(), valid); }
  template <int ITEMS>
  T Sum(T (&inputs)[ITEMS]) { return Reduce(inputs, Add()); }
  T Max(T input, int valid = N) { return Reduce(input, Greatest(), valid); }
  T Min(T input, int valid = N) { return Reduce(input, Least(), valid); }

 protected:
  TempStorage& storage_;
  Group group_;
};

template <class T, class Group, int N>
class Scan {
 public:
  using TempStorage = Storage<T, N>;
  Scan(TempStorage& storage, ON_HOST_LINE) : storage_(storage), group_{line} {}

  template <class Op>
  void InclusiveScan(T input, T& output, Op op, T& aggregate) {
    scan(input, op);
    output = storage_[group_.me()];
    aggregate = storage_[group_.count() - 1];
    group_.wait();
  }
  template <class Op>
  void ExclusiveScan(T input, T& output, T initial, Op op, T& aggregate) {
    scan(input, op);
    const int me = group_.me();
    output = me ? op(initial, storage_[me - 1]) : initial;
    aggregate = storage_[group_.count() - 1];
    group_.wait();
  }
  template <class Op>
  void ExclusiveScan(T input, T& output, Op op) {
    scan(input, op);
    const int me = group_.me();
    if (me) output = storage_[me - 1];
    group_.wait();
  }
  template <class Op>
  void InclusiveScan(T input, T& output, Op op) {
    T aggregate = input;
    InclusiveScan(input, output, op, aggregate);
  }
  template <class Op>
  void ExclusiveScan(T input, T& output, T initial, Op op) {
    T aggregate = input;
    ExclusiveScan(input, output, initial, op, aggregate);
  }
  void InclusiveSum(T input, T& output) { InclusiveScan(input, output, Add()); }
  void InclusiveSum(T input, T& output, T& sum) { InclusiveScan(input, output, Add(), sum); }
  void ExclusiveSum(T input, T& output) { ExclusiveScan(input, output, T(), Add()); }
  void ExclusiveSum(T input, T& output, T& sum) { ExclusiveScan(input, output, T(), Add(), sum); }

  template <int ITEMS, class Op>
  void InclusiveScan(T (&inputs)[ITEMS], T (&outputs)[ITEMS], Op op, T& aggregate) {
    T own = total(inputs, op), before = own;
    scan(own, op);
    const int me = group_.me();
    if (me) before = storage_[me - 1];
    aggregate = storage_[group_.count() - 1];
    group_.wait();
    for (int i = 0; i < ITEMS; ++i) {
      outputs[i] = i == 0 && !me ? inputs[0] : op(before, inputs[i]);
      before = outputs[i];
    }
  }
  template <int ITEMS, class Op>
  void InclusiveScan(T (&inputs)[ITEMS], T (&outputs)[ITEMS], Op op) {
    T aggregate = inputs[0];
    InclusiveScan(inputs, outputs, op, aggregate);
  }
  template <int ITEMS, class Op>
  void ExclusiveScan(T (&inputs)[ITEMS], T (&outputs)[ITEMS], T initial, Op op, T& aggregate) {
    T running = initial;
    ExclusiveScan(total(inputs, op), running, initial, op, aggregate);
    for (int i = 0; i < ITEMS; ++i) {
      const T next = op(running, inputs[i]);
      outputs[i] = running;
      running = next;
    }
  }
  template <int ITEMS, class Op>
  void ExclusiveScan(T (&inputs)[ITEMS], T (&outputs)[ITEMS], T initial, Op op) {
    T aggregate = initial;
    ExclusiveScan(inputs, outputs, initial, op, aggregate);
  }
  template <int ITEMS>
  void InclusiveSum(T (&inputs)[ITEMS], T (&outputs)[ITEMS]) { InclusiveScan(inputs, outputs, Add()); }
  template <int ITEMS>
  void InclusiveSum(T (&inputs)[ITEMS], T (&outputs)[ITEMS], T& sum) {
    InclusiveScan(inputs, outputs, Add(), sum);
  }
  template <int ITEMS>
  void ExclusiveSum(T (&inputs)[ITEMS], T (&outputs)[ITEMS]) {
    ExclusiveScan(inputs, outputs, T(), Add());
  }
  template <int ITEMS>
  void ExclusiveSum(T (&inputs)[ITEMS], T (&outputs)[ITEMS], T& sum) {
    ExclusiveScan(inputs, outputs, T(), Add(), sum);
  }

 private:
  template <int ITEMS, class Op>
  static T total(T (&inputs)[ITEMS], Op op) {
    T own = inputs[0];
    for (int i = 1; i < ITEMS; ++i) own = op(own, inputs[i]);
    return own;
  }
  template <class Op>
  void scan(T input, Op op) {
    storage_[group_.me()] = input;
    group_.wait();
    if (group_.me() == 0)
      for (int i = 1; i < group_.count(); ++i) storage_[i] = op(storage_[i - 1], storage_[i]);
    group_.wait();
  }
  TempStorage& storage_;
  Group group_;
};

}  // namespace on_host

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0>
struct BlockReduce : on_host::Reduction<T, on_host::Block<X * Y * Z>, X * Y * Z> {
  using on_host::Reduction<T, on_host::Block<X * Y * Z>, X * Y * Z>::Reduction;
};

template <class T, int LANES = 32, int = 0>
struct WarpReduce : on_host::Reduction<T, on_host::Warp<LANES>, LANES> {
  using Base = on_host::Reduction<T, on_host::Warp<LANES>, LANES>;
  using Base::Base;
  // A warp may reduce again at once: CUB's own goes through registers.
  template <class... Given>
  T Reduce(Given&&... given) { return settled(Base::Reduce(std::forward<Given>(given)...)); }
  template <class... Given>
  T Sum(Given&&... given) { return settled(Base::Sum(std::forward<Given>(given)...)); }
  template <class... Given>
  T Max(Given&&... given) { return settled(Base::Max(std::forward<Given>(given)...)); }
  template <class... Given>
  T Min(Given&&... given) { return settled(Base::Min(std::forward<Given>(given)...)); }

 private:
  T settled(T result) {
    this->group_.wait();
    return result;
  }
};

template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0>
struct BlockScan : on_host::Scan<T, on_host::Block<X * Y * Z>, X * Y * Z> {
  using on_host::Scan<T, on_host::Block<X * Y * Z>, X * Y * Z>::Scan;
};

template <class T, int LANES = 32, int = 0>
struct WarpScan : on_host::Scan<T, on_host::Warp<LANES>, LANES> {
  using on_host::Scan<T, on_host::Warp<LANES>, LANES>::Scan;
  T Broadcast(T value, unsigned lane) { return __shfl_sync(__activemask(), value, lane, LANES); }
};

template <class T, int X, int ITEMS, BlockLoadAlgorithm ALGORITHM = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int = 0>
struct BlockLoad {
  struct TempStorage { unsigned char unused; };
  BlockLoad() {}
  explicit BlockLoad(TempStorage&) {}
  static int at(int i) {
    const int me = static_cast<int>(cuda_on_host::current);
    return ALGORITHM == BLOCK_LOAD_STRIPED ? i * X * Y * Z + me : me * ITEMS + i;
  }
  template <class From>
  void Load(From from, T (&items)[ITEMS]) { Load(from, items, X * Y * Z * ITEMS); }
  template <class From>
  void Load(From from, T (&items)[ITEMS], int valid) {
    for (int i = 0; i < ITEMS; ++i)
      if (at(i) < valid) items[i] = from[at(i)];
  }
  template <class From, class Default>
  void Load(From from, T (&items)[ITEMS], int valid, Default otherwise) {
    for (int i = 0; i < ITEMS; ++i) items[i] = at(i) < valid ? T(from[at(i)]) : T(otherwise);
  }
};

template <class T, int X, int ITEMS, BlockStoreAlgorithm ALGORITHM = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int = 0>
struct BlockStore {
  struct TempStorage { unsigned char unused; };
  BlockStore() {}
  explicit BlockStore(TempStorage&) {}
  template <class To>
  void Store(To to, T (&items)[ITEMS], int valid = X * Y * Z * ITEMS) {
    const int me = static_cast<int>(cuda_on_host::current);
    for (int i = 0; i < ITEMS; ++i) {
      const int at = ALGORITHM == BLOCK_STORE_STRIPED ? i * X * Y * Z + me : me * ITEMS + i;
      if (at < valid) to[at] = items[i];
    }
  }
};

template <class T, int X, int ITEMS, bool = false, int Y = 1, int Z = 1, int = 0>
struct BlockExchange {
  using TempStorage = on_host::Storage<T, X * Y * Z * ITEMS>;
  explicit BlockExchange(TempStorage& storage, ON_HOST_LINE) : storage_(storage), line_(line) {}
  void BlockedToStriped(const T (&in)[ITEMS], T (&out)[ITEMS]) { moved(in, out, ITEMS, 1, 1, X * Y * Z); }
  void StripedToBlocked(const T (&in)[ITEMS], T (&out)[ITEMS]) { moved(in, out, 1, X * Y * Z, ITEMS, 1); }
  void BlockedToStriped(T (&items)[ITEMS]) { BlockedToStriped(items, items); }
  void StripedToBlocked(T (&items)[ITEMS]) { StripedToBlocked(items, items); }

 private:
  void moved(const T (&in)[ITEMS], T (&out)[ITEMS], int thread, int item, int to_thread, int to_item) {
    const int me = static_cast<int>(cuda_on_host::current);
    for (int i = 0; i < ITEMS; ++i) storage_[me * thread + i * item] = in[i];
    __syncthreads(line_);
    for (int i = 0; i < ITEMS; ++i) out[i] = storage_[me * to_thread + i * to_item];
  }
  TempStorage& storage_;
  int line_;
};

template <class Key, int X, int ITEMS, class Value = NullType, int = 4, bool = true,
          BlockScanAlgorithm = BLOCK_SCAN_WARP_SCANS, int = 0, int Y = 1, int Z = 1, int = 0>
class BlockRadixSort {
  static constexpr int kAll = X * Y * Z * ITEMS;

 public:
  struct TempStorage {
    on_host::Storage<Key, kAll> keys;
    on_host::Storage<Value, kAll> values;
    int order[kAll];
  };
  explicit BlockRadixSort(TempStorage& storage, ON_HOST_LINE) : storage_(storage), line_(line) {}

  void Sort(Key (&keys)[ITEMS]) { sort(keys, none_, false, false); }
  void Sort(Key (&keys)[ITEMS], Value (&values)[ITEMS]) { sort(keys, values, false, false); }
  void SortDescending(Key (&keys)[ITEMS]) { sort(keys, none_, true, false); }
  void SortDescending(Key (&keys)[ITEMS], Value (&values)[ITEMS]) { sort(keys, values, true, false); }
  void SortBlockedToStriped(Key (&keys)[ITEMS]) { sort(keys, none_, false, true); }
  void SortBlockedToStriped(Key (&keys)[ITEMS], Value (&values)[ITEMS]) { sort(keys, values, false, true); }
  void SortDescendingBlockedToStriped(Key (&keys)[ITEMS]) { sort(keys, none_, true, true); }
  void SortDescendingBlockedToStriped(Key (&keys)[ITEMS], Value (&values)[ITEMS]) {
    sort(keys, values, true, true);
  }

 private:
  void sort(Key (&keys)[ITEMS], Value (&values)[ITEMS], bool descends, bool striped) {
    const int me = static_cast<int>(cuda_on_host::current);
    for (int i = 0; i < ITEMS; ++i) {
      storage_.keys[me * ITEMS + i] = keys[i];
      storage_.values[me * ITEMS + i] = values[i];
    }
    __syncthreads(line_);
    if (me == 0) {
      auto& all = storage_.keys;
      for (int i = 0; i < kAll; ++i) storage_.order[i] = i;
      std::stable_sort(storage_.order, storage_.order + kAll, [&](int a, int b) {
        return descends ? all[b] < all[a] : all[a] < all[b];
      });
    }
    __syncthreads(line_);
    for (int i = 0; i < ITEMS; ++i) {
      const int from = storage_.order[striped ? i * X * Y * Z + me : me * ITEMS + i];
      keys[i] = storage_.keys[from];
      values[i] = storage_.values[from];
    }
  }
  Value none_[ITEMS];
  TempStorage& storage_;
  int line_;
};

}  // namespace cub
