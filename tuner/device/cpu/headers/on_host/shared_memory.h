// Shared memory: found spoiled by every block, and watched for writes beyond its variables.
#pragma once

namespace cuda_on_host {

constexpr unsigned kMaxSharedBytes = 227 * 1024, kMaxStaticBytes = 48 * 1024;
constexpr unsigned kMaxVariables = 1024;
constexpr unsigned kSharedGuardBytes = 1024;
constexpr unsigned char kGuard = 0xA5;

alignas(1024) unsigned char dynamic_shared[kMaxSharedBytes + kSharedGuardBytes];

struct Variable {
  const char* name;
  unsigned char *zone, *value;
  size_t zone_bytes, bytes;
  void (*user)();  // the kernel that met it first; null for one outside all functions
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
    if (!variables[i].user || variables[i].user == run_thread) used += variables[i].bytes;
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
                                 active ? run_thread : nullptr};
  close_zone(start, middle);
  close_zone(middle + bytes, start + zone_bytes);
  if (active) {
    check_static_size();
    memset(middle, unwritten(), bytes);
  }
  return true;
}

static void spoil_shared() {
  memset(dynamic_shared, unwritten(), active->shared_bytes);
  for (unsigned i = 0; i < variable_count; ++i)
    memset(variables[i].value, unwritten(), variables[i].bytes);
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

}  // namespace cuda_on_host
