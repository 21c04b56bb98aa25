// Asynchronous copies. Each lands when it must, or earlier by chance where orders are random; until
// then its destination holds NaN. What the asynchronous proxy (wgmma, bulk stores) reads of shared
// memory is a view of its own, which `fence.proxy.async` brings up to date with what threads wrote.
#pragma once

namespace cuda_on_host {

constexpr unsigned char kNotLanded = 0xFF;

static PerBlock<unsigned char[kWindowBytes]> proxy_view;
static PerBlock<bool> publish_wanted, proxy_used;

static void publish() {
  if (!*publish_wanted) return;
  *publish_wanted = false;
  *proxy_used = true;
  SharedPart place;
  for (unsigned i = 0; next_place(i, place);) memcpy(*proxy_view + place.start, memory_of(here, place), place.bytes);
}

void fence_asynchronous() {
  *publish_wanted = true;
  for (Mbarrier& one : *mbarriers) one.fenced = true;
}

static void put(unsigned to, const void* from, unsigned bytes, int line) {
  memcpy(shared_at(to, bytes, 1, "a copy", line), from, bytes);
  memcpy(*proxy_view + to, from, bytes);
}

static void spoil(unsigned to, unsigned bytes, unsigned alignment, const char* what, int line) {
  memset(shared_at(to, bytes, alignment, what, line), kNotLanded, bytes);
  memset(*proxy_view + to, kNotLanded, bytes);
}

// A load that completes on an mbarrier: of a range, a box or, into a peer, of 16 bytes.
struct Load {
  unsigned to, bytes, barrier;
  const unsigned char* from;
  TensorMap map;
  Corner corner;
  std::array<unsigned char, 16> value;
  int line;
  uint3 thread;
};
static PerBlock<std::vector<Load>> in_flight;  // into its own memory

static void check_map(const TensorMap& map, unsigned rank, int line) {
  if (map.magic != kTensorMap) fault(line, "this is no tensor map of the `host` device");
  if (map.rank != rank) fault(line, "a box of %u dimensions, but the map has %u", rank, map.rank);
}

static unsigned box_bytes(const TensorMap& map) {
  unsigned bytes = map.element_bytes;
  for (unsigned i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

// Bits 4 to 6 of an address in shared memory take those of its row, 7 to 9.
static unsigned swizzled(unsigned address, unsigned swizzle) {
  return swizzle ? address ^ (address >> 7 & (swizzle / 16 - 1)) << 4 : address;
}

// Call `each(address in shared memory, element or null outside of the tensor)` for a box.
template <class Each>
static void walk_box(const TensorMap& map, const Corner& corner, unsigned start, Each each) {
  const unsigned rows = map.box[1], layers = map.rank > 2 ? map.box[2] : 1;
  unsigned at = start;
  for (unsigned z = 0; z < layers; ++z)
    for (unsigned y = 0; y < rows; ++y)
      for (unsigned x = 0; x < map.box[0]; ++x, at += map.element_bytes) {
        const long long i = 1ll * corner.at[0] + x, j = 1ll * corner.at[1] + y, k = 1ll * corner.at[2] + z;
        const auto inside = [&](long long index, unsigned dimension) {
          return index >= 0 && index < static_cast<long long>(map.sizes[dimension]);
        };
        unsigned char* element = nullptr;
        if (inside(i, 0) && inside(j, 1) && (map.rank < 3 || inside(k, 2)))
          element = static_cast<unsigned char*>(map.address) + i * map.element_bytes +
                    j * static_cast<long long>(map.strides[0]) +
                    (map.rank > 2 ? k * static_cast<long long>(map.strides[1]) : 0);
        each(swizzled(at, map.swizzle), element);
      }
}

static void land(size_t index) {
  const Load load = (*in_flight)[index];
  in_flight->erase(in_flight->begin() + static_cast<std::ptrdiff_t>(index));
  threadIdx = load.thread;  // for messages; no thread runs now
  if (load.corner.rank) {
    const unsigned char zeros[16] = {};
    walk_box(load.map, load.corner, load.to, [&](unsigned at, const unsigned char* element) {
      put(at, element ? element : zeros, load.map.element_bytes, load.line);
    });
  } else {
    put(load.to, load.from ? load.from : load.value.data(), load.bytes, load.line);
  }
  complete(load.barrier, load.bytes, load.line);
}

// Let a load land that nothing waits for yet (`must`: something does); say whether one did.
static bool land_one(bool must) {
  if (in_flight->empty() || (!must && (!random_order() || random_below(4)))) return false;
  const unsigned count = static_cast<unsigned>(in_flight->size());
  land(random_order() ? random_below(count) : active->order == 0 ? count - 1 : 0);
  return true;
}

static void send(const Load& load, unsigned alignment, const char* what) {
  *proxy_used = true;
  Mbarrier& barrier = mbarrier_at(load.barrier, what, load.line);
  if (!barrier.fenced)
    fault(load.line, "%s: no fence_mbarrier_init since its mbarrier was initialized (line %d)", what, barrier.line);
  spoil(load.to, load.bytes, alignment, what, load.line);
  in_flight->push_back(load);
  in_flight->back().thread = threadIdx;
}

void load_range(unsigned to, const void* from, unsigned bytes, unsigned barrier, int line) {
  if (bytes % 16 || reinterpret_cast<uintptr_t>(from) % 16)
    fault(line, "bulk_load: %u bytes from %p: both must be multiples of 16", bytes, from);
  send({to, bytes, barrier, static_cast<const unsigned char*>(from), {}, {}, {}, line, {}}, 16, "bulk_load");
}

void load_box(unsigned to, const TensorMap& map, Corner corner, unsigned barrier, int line) {
  check_map(map, corner.rank, line);
  send({to, box_bytes(map), barrier, nullptr, map, corner, {}, line, {}}, 128, "tensor_load");
}

void multicast_box(unsigned to, const TensorMap& map, Corner corner, unsigned barrier, unsigned blocks, int line) {
  const char* const what = "tensor_multicast";
  check_map(map, corner.rank, line);
  for (unsigned rank = 0; blocks >> rank; ++rank) {
    if (!(blocks >> rank & 1)) continue;
    Visit visit(map_to_peer(to, rank, line), what, line);
    send({visit.address, box_bytes(map), barrier, nullptr, map, corner, {}, line, {}}, 128, what);
  }
}

void store_late(unsigned to, float4 value, unsigned barrier, int line) {
  const char* const what = "cluster_store_async";
  if (to / kWindowBytes != barrier / kWindowBytes) fault(line, "%s into one block, with the mbarrier of another", what);
  Visit visit(to, what, line);
  Load load = {visit.address, 16, barrier % kWindowBytes, nullptr, {}, {}, {}, line, {}};
  memcpy(load.value.data(), &value, sizeof value);
  send(load, 16, what);
}

float4 load_from_peer(unsigned mapped, int line) {
  Visit visit(mapped, "cluster_load", line);
  float4 value;
  memcpy(&value, shared_at(visit.address, 16, 16, "cluster_load", line), sizeof value);
  return value;
}

// Refuse to read what a copy has yet to write: more than NaN, a sentence.
static void require_landed(unsigned address, unsigned bytes, const char* what, int line) {
  for (const Load& one : *in_flight)
    if (address < one.to + one.bytes && one.to < address + bytes)
      fault(line, "%s reads shared memory that the copy of line %d is still to write: nothing waited for its mbarrier",
            what, one.line);
}

struct Piece {
  unsigned to, bytes, from_bytes;
  const void* from;
  int line;
};
struct Store {
  unsigned from, bytes;
  unsigned char* to;
  TensorMap map;
  Corner corner;
  bool read;
  std::vector<unsigned char> held;
  int line;
};
// What a thread has asked for: what is not committed, and committed groups, the oldest first.
template <class T>
struct Groups {
  std::vector<T> open;
  std::vector<std::vector<T>> committed;

  void commit() {
    committed.push_back(std::move(open));
    open.clear();
  }
  // Call `each` for all but the last `pending` groups, and forget those.
  template <class Each>
  void complete(unsigned pending, Each each) {
    while (committed.size() > pending) {
      for (T& one : committed.front()) each(one);
      committed.erase(committed.begin());
    }
  }
};
static PerBlock<std::vector<Groups<Piece>>> pieces;
static PerBlock<std::vector<Groups<Store>>> stores;

void copy_of_thread(unsigned to, const void* from, unsigned bytes, unsigned from_bytes, int line) {
  if (from_bytes > bytes) fault(line, "cp_async of %u bytes from %u", bytes, from_bytes);
  if (reinterpret_cast<uintptr_t>(from) % bytes) misaligned(from, bytes, line);
  memset(shared_at(to, bytes, bytes, "cp_async", line), kNotLanded, bytes);
  mine(pieces).open.push_back({to, bytes, from_bytes, from, line});
}

void commit_copies() { mine(pieces).commit(); }

void wait_for_copies(unsigned pending) {
  mine(pieces).complete(pending, [](const Piece& one) {
    unsigned char* const to = shared_at(one.to, one.bytes, one.bytes, "cp_async", one.line);
    memcpy(to, one.from, one.from_bytes);
    memset(to + one.from_bytes, 0, one.bytes - one.from_bytes);
  });
}

static void store(const Store& one) {
  *proxy_used = true;
  mine(stores).open.push_back(one);
}

void store_range(void* to, unsigned from, unsigned bytes, int line) {
  if (bytes % 16 || reinterpret_cast<uintptr_t>(to) % 16)
    fault(line, "bulk_store: %u bytes to %p: both must be multiples of 16", bytes, to);
  shared_at(from, bytes, 16, "bulk_store", line);
  store({from, bytes, static_cast<unsigned char*>(to), {}, {}, false, {}, line});
}

void store_box(const TensorMap& map, unsigned from, Corner corner, int line) {
  check_map(map, corner.rank, line);
  shared_at(from, box_bytes(map), 128, "tensor_store", line);
  store({from, box_bytes(map), nullptr, map, corner, false, {}, line});
}

void commit_stores() { mine(stores).commit(); }

static void read_source(Store& one) {
  if (one.read) return;
  publish();
  require_landed(one.from, one.bytes, "a store", one.line);
  one.held.assign(*proxy_view + one.from, *proxy_view + one.from + one.bytes);
  one.read = true;
}

static void write_out(Store& one) {
  read_source(one);
  if (one.to) {
    memcpy(one.to, one.held.data(), one.bytes);
    return;
  }
  walk_box(one.map, one.corner, one.from, [&](unsigned at, unsigned char* element) {
    if (element) memcpy(element, one.held.data() + (at - one.from), one.map.element_bytes);
  });
}

void wait_for_stores(unsigned pending, bool written) {
  Groups<Store>& groups = mine(stores);
  for (size_t i = 0; i + pending < groups.committed.size(); ++i)
    for (Store& one : groups.committed[i]) read_source(one);
  if (written) groups.complete(pending, write_out);
}

// A thread ends: what it has read of its stores is written some time, and the rest is a mistake.
static void end_of_copies() {
  if (stores->empty()) return;
  Groups<Store>& groups = mine(stores);
  for (const Store& one : groups.open) fault(one.line, "a bulk store that is never committed");
  groups.complete(0, [](Store& one) {
    if (!one.read) fault(one.line, "a bulk store that still reads as its thread ends: nothing waited for it");
    write_out(one);
  });
}

static void begin_copies() {
  *publish_wanted = false;
  mbarriers->clear();
  in_flight->clear();
  pieces->clear();
  stores->clear();
  if (!*proxy_used) return;
  *proxy_used = false;
  memset(*proxy_view, unwritten(), sizeof *proxy_view);
}

static void check_nothing_in_flight() {
  if (in_flight->empty()) return;
  threadIdx = in_flight->front().thread;
  fault(in_flight->front().line, "block (%u,%u,%u) ends before this copy into its shared memory has landed",
        blockIdx.x, blockIdx.y, blockIdx.z);
}

}  // namespace cuda_on_host
