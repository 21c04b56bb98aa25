// What passes between the worker, a compiled kernel and the runtime that is linked to it.
//
// A source may use none of the names here, nor any of `cuda_on_host`: see host_source.py.
#pragma once

namespace cuda_on_host {

enum Code { kDone = 0, kRefused = 1, kStuck = 2, kTimeout = 3, kFault = 4, kSanitizer = 5 };

struct Range {
  const char* start;
  size_t bytes;
};

// What the worker passes, in ctypes; keep equal to child.py. The order of blocks and threads
// is 0 for ascending, 1 for descending, and else the seed of a random one.
struct Launch {
  unsigned grid[3], block[3], cluster[3];
  unsigned shared_bytes, arguments, order;
  double timeout_s;
  void* const* values;
  const unsigned* sizes;
  char* message;
  size_t message_bytes;
  const Range* guards;
  unsigned guard_count;
};

// What entries.h says of a kernel: how a thread calls it, and the sizes of its parameters.
struct Kernel {
  void (*function)();
  void (*thread)(void (*function)(), void* const* values);
  const unsigned* sizes;
  unsigned count;
};

#pragma GCC visibility push(hidden)

extern const Launch* active;

// Registers a `__shared__` variable when its declaration is first met: the zones before and after
// it, whose change is an error, and the value, which every block finds spoiled.
bool enter_shared(void* zone, size_t zone_bytes, void* value, size_t bytes, const char* name);

#pragma GCC visibility pop

constexpr size_t kZoneBytes = 64;

template <class T, size_t kAlignment>
struct Shared {
  static constexpr size_t kAligned = kAlignment > 16 ? kAlignment : 16;

  alignas(kAligned) unsigned char before[kAligned > kZoneBytes ? kAligned : kZoneBytes];
  T value;
  unsigned char after[kZoneBytes];

  bool enter(const char* name) {
    return enter_shared(this, sizeof *this, (void*)&value, sizeof value, name);
  }
};

}  // namespace cuda_on_host
