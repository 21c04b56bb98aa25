// Shared memory: found spoiled by every block, watched for writes beyond its variables, and shared
// with the other blocks of a cluster.
#pragma once

namespace cuda_on_host {

#ifdef ON_HOST_SHARED_BYTES  // AMD's LDS, which static variables may fill
constexpr unsigned kMaxSharedBytes = ON_HOST_SHARED_BYTES, kMaxStaticBytes = ON_HOST_SHARED_BYTES;
#else
constexpr unsigned kMaxSharedBytes = 227 * 1024, kMaxStaticBytes = 48 * 1024;
#endif
constexpr unsigned kMaxVariables = 1024;
constexpr unsigned kSharedGuardBytes = 1024;
constexpr unsigned char kGuard = 0xA5;

alignas(1024) unsigned char dynamic_shared[kMaxSharedBytes + kSharedGuardBytes];

struct Variable {
  const char* name;
  unsigned char *zone, *value;
  size_t zone_bytes, bytes;
  decltype(Kernel::thread) user;  // of the kernel that met it first; null for one outside all functions
};
static Variable variables[kMaxVariables];
static unsigned variable_count;

// NaN and -1 in one order, ordinary numbers in the others: what reads it gives different results.
static unsigned char unwritten() {
  return static_cast<unsigned char>(active->order == 0 ? 0xFF : 0x41 + active->order % 0x3B);
}

// As a GPU's loader does; of another kernel's variables this one has none.
static void check_static_size() {
  size_t used = 0;
  for (unsigned i = 0; i < variable_count; ++i)
    if (!variables[i].user || variables[i].user == kernel.thread) used += variables[i].bytes;
  if (used <= kMaxStaticBytes && used + active->shared_bytes <= kMaxSharedBytes) return;
  if (used > kMaxStaticBytes)
    say("the kernel declares %zu bytes of static shared memory: at most %u are possible", used,
        kMaxStaticBytes);
  else
    say("%zu bytes of static and %u of dynamic shared memory: at most %u are possible", used,
        active->shared_bytes, kMaxSharedBytes);
  give_up(kRefused);
}

#ifdef ON_HOST_ADDRESS
static void close_zone(unsigned char* start, unsigned char* end) {
  __asan_poison_memory_region(start, static_cast<size_t>(end - start));
}
static void check_zone(const char*, const char*, size_t, const unsigned char*,
                       const unsigned char*) {}
#else
static void close_zone(unsigned char* start, unsigned char* end) {
  memset(start, kGuard, static_cast<size_t>(end - start));
}
static void check_zone(const char* where, const char* name, size_t bytes,
                       const unsigned char* start, const unsigned char* end) {
  for (; start < end; ++start) {
    if (*start == kGuard) continue;
    say("block (%u,%u,%u) wrote %s the %zu bytes of its %s", blockIdx.x, blockIdx.y, blockIdx.z,
        where, bytes, name);
    give_up(kStuck);
  }
}
#endif

bool enter_shared(void* zone, size_t zone_bytes, void* value, size_t bytes, const char* name) {
  unsigned char* const start = static_cast<unsigned char*>(zone);
  unsigned char* const middle = static_cast<unsigned char*>(value);
  if (active && variable_count == kMaxVariables) {
    say("more than %u shared variables", kMaxVariables);
    give_up(kRefused);
  }
  variables[variable_count++] = {name, start, middle, zone_bytes, bytes,
                                 active ? kernel.thread : nullptr};
  close_zone(start, middle);
  close_zone(middle + bytes, start + zone_bytes);
  if (active) {
    check_static_size();
    memset(middle, unwritten(), bytes);
  }
  return true;
}

static void check_shared() {
  unsigned char* const guard = dynamic_shared + active->shared_bytes;
  if (active->shared_bytes)
    check_zone("past", "dynamic shared memory", active->shared_bytes, guard,
               guard + kSharedGuardBytes);
  for (unsigned i = 0; i < variable_count; ++i) {
    const Variable& one = variables[i];
    check_zone("before", one.name, one.bytes, one.zone, one.value);
    check_zone("past", one.name, one.bytes, one.value + one.bytes, one.zone + one.zone_bytes);
  }
}

static void open_dynamic_shared() {
#ifdef ON_HOST_ADDRESS
  __asan_unpoison_memory_region(dynamic_shared, sizeof dynamic_shared);
#endif
  close_zone(dynamic_shared + active->shared_bytes, dynamic_shared + sizeof dynamic_shared);
}

// Descriptors of matrices hold 18 bits of an address. What stands above is 1 + the rank of another
// block of the cluster.
constexpr unsigned kWindowStart = 1024, kWindowBytes = 256 * 1024;

struct SharedPart {
  unsigned start, bytes;
  unsigned char* memory;
};

// The block's `index`th piece of shared memory: the dynamic one, then the statics.
static bool next_place(unsigned& index, SharedPart& place) {
  if (index == 0) {
    place = {kWindowStart, active->shared_bytes, dynamic_shared};
    ++index;
    return true;
  }
  while (index <= variable_count) {
    const Variable& one = variables[index++ - 1];
    if (one.user && one.user != kernel.thread) continue;
    // As far from a multiple of 1024 as it is here: swizzles look at the address.
    const unsigned end = place.start + place.bytes + 15;
    const unsigned low = static_cast<unsigned>(reinterpret_cast<uintptr_t>(one.value) - end) & 1023;
    place = {end + low, static_cast<unsigned>(one.bytes), one.value};
    return place.start + place.bytes <= kWindowBytes;
  }
  return false;
}

// A variable has one address in the code, so one block of a cluster has its shared memory there, and
// the others have theirs in an area each. That of a block which has not begun or has ended is closed.
enum class Life : unsigned char { unstarted, running, ended };
static PerBlock<Life> life;
static unsigned char* areas;
constexpr unsigned kNobody = kMaxBlocks;
static unsigned loaded;

static unsigned char* area_of(unsigned rank) { return areas + size_t{rank} * kWindowBytes; }

static unsigned char* memory_of(unsigned rank, const SharedPart& place) {
  return rank == loaded ? place.memory : area_of(rank) + place.start;
}

static bool prepare_areas() {
  if (areas || cluster_blocks == 1) return true;
  void* const memory =
      mmap(nullptr, kMaxBlocks * kWindowBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  areas = static_cast<unsigned char*>(memory);
  return true;
}

static void live(Life now) {
  *life = now;
  if (cluster_blocks == 1) return;
  if (now == Life::ended && loaded == here) loaded = kNobody;
  mprotect(area_of(here), kWindowBytes, now == Life::running ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static void spoil_shared() {
  loaded = cluster_blocks == 1 ? 0 : kNobody;
  if (cluster_blocks == 1) {
    memset(dynamic_shared, unwritten(), active->shared_bytes);
    for (unsigned i = 0; i < variable_count; ++i)
      memset(variables[i].value, unwritten(), variables[i].bytes);
    return;
  }
  mprotect(areas, kMaxBlocks * kWindowBytes, PROT_READ | PROT_WRITE);
  memset(areas, unwritten(), cluster_blocks * kWindowBytes);  // of variables that are met later, too
  mprotect(areas, kMaxBlocks * kWindowBytes, PROT_NONE);
}

static void load_block() {
  if (*life == Life::unstarted) live(Life::running);
  if (loaded == here) return;
  SharedPart place;
  for (unsigned i = 0; next_place(i, place);) {
    if (loaded != kNobody) memcpy(area_of(loaded) + place.start, place.memory, place.bytes);
    memcpy(place.memory, area_of(here) + place.start, place.bytes);
  }
  loaded = here;
}

static uint3 block_at(unsigned rank) {
  return {cluster_first.x + rank % cluster_dim.x, cluster_first.y + rank / cluster_dim.x % cluster_dim.y,
          cluster_first.z + rank / cluster_dim.x / cluster_dim.y};
}

// Looks at another block for a moment: the one that an address from `map_shared` leads to.
struct Visit {
  const unsigned home = here, address;

  Visit(unsigned mapped, const char* what, int line) : address(mapped % kWindowBytes) {
    if (mapped < kWindowBytes) return;
    here = mapped / kWindowBytes - 1;
    if (*life == Life::running) return;
    const uint3 at = block_at(here);
    fault(line, "%s: block (%u,%u,%u) of the cluster has %s: nothing waited for it", what, at.x, at.y, at.z,
          *life == Life::ended ? "ended" : "not begun");
  }
  ~Visit() { here = home; }
};

static const unsigned char* as_bytes(const void* pointer) { return static_cast<const unsigned char*>(pointer); }

static bool in_areas(const void* pointer, unsigned& rank) {
  if (!areas || as_bytes(pointer) < areas || as_bytes(pointer) >= area_of(kMaxBlocks)) return false;
  rank = static_cast<unsigned>((as_bytes(pointer) - areas) / kWindowBytes);
  return true;
}

// Of a block that is not there: its area is closed.
static bool describe_peer(const void* pointer, char* text, size_t size) {
  unsigned rank;
  if (!in_areas(pointer, rank)) return false;
  const uint3 at = block_at(rank);
  snprintf(text, size, "in the shared memory of block (%u,%u,%u) of the cluster, which has %s: nothing waited for it",
           at.x, at.y, at.z, life.of[rank] == Life::ended ? "ended" : "not begun");
  return true;
}

bool is_shared(const void* pointer) {
  const unsigned char* const wanted = as_bytes(pointer);
  unsigned rank;
  if (in_areas(pointer, rank)) return true;
  SharedPart place;
  for (unsigned i = 0; next_place(i, place);)
    if (wanted >= place.memory && wanted < place.memory + place.bytes) return true;
  return false;
}

unsigned window_of(const void* pointer, int line) {
  const unsigned char* const wanted = as_bytes(pointer);
  unsigned rank;
  if (in_areas(pointer, rank))
    return (rank + 1) * kWindowBytes + static_cast<unsigned>((wanted - areas) % kWindowBytes);
  SharedPart place;
  for (unsigned i = 0; next_place(i, place);)
    if (wanted >= place.memory && wanted <= place.memory + place.bytes)
      return place.start + static_cast<unsigned>(wanted - place.memory);
  fault(line, "shared_address of %p, which is not in shared memory", pointer);
}

unsigned char* shared_at(unsigned address, unsigned bytes, unsigned alignment, const char* what, int line) {
  if (address % alignment)
    fault(line, "%s: the address %u in shared memory is no multiple of %u", what, address, alignment);
  if (address >= kWindowBytes)
    fault(line, "%s: an address from map_shared, where only one of its own block can be", what);
  SharedPart place;
  for (unsigned i = 0; next_place(i, place);)
    if (address >= place.start && address - place.start + bytes <= place.bytes)
      return memory_of(here, place) + (address - place.start);
  fault(line, "%s: %u bytes at the address %u lie outside of shared memory", what, bytes, address);
}

static bool cluster_used;  // arrived at its barrier, or looked for another block

static void require_peer(unsigned rank, int line) {
  cluster_used = true;
  if (rank >= cluster_blocks)
    fault(line, "shared memory of block %u of a cluster that has %u", rank, cluster_blocks);
}

unsigned map_to_peer(unsigned address, unsigned rank, int line) {
  require_peer(rank, line);
  return rank == here ? address : (rank + 1) * kWindowBytes + address % kWindowBytes;
}

void* peer_of(const void* pointer, unsigned rank, int line) {
  require_peer(rank, line);
  const unsigned address = window_of(pointer, line) % kWindowBytes;
  return rank == here ? shared_at(address, 0, 1, "map_shared_rank", line) : area_of(rank) + address;
}

unsigned char* shared_of_cluster_at(unsigned address, unsigned bytes, int line) {
  Visit visit(address, "an access", line);
  return shared_at(visit.address, bytes, bytes, "an access", line);
}

unsigned rank_at(unsigned address) { return address < kWindowBytes ? here : address / kWindowBytes - 1; }

unsigned rank_of(const void* pointer, int line) { return rank_at(window_of(pointer, line)); }

}  // namespace cuda_on_host
