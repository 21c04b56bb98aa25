// Atomics, and loads and stores with hints.
//
// Blocks and threads run in turn and switch only at barriers, so plain accesses are atomic.
#pragma once

namespace cuda_on_host {

#pragma GCC visibility push(hidden)
bool is_shared(const void* pointer);
// An address in shared memory as the GPU has it: dynamic memory begins at 1024, statics follow.
unsigned window_of(const void* pointer, int line);
unsigned char* shared_at(unsigned address, unsigned bytes, unsigned alignment, const char* what, int line);
// The same for an address from `map_shared`, which may lead to another block of the cluster.
unsigned char* shared_of_cluster_at(unsigned address, unsigned bytes, int line);
unsigned rank_at(unsigned address);
#pragma GCC visibility pop

// The undefined-behaviour sanitizer would name this header's line, so it is done by hand, with it
// and without: no kernel may know it by what it includes.
template <class T>
__forceinline__ void check_address(const T* address, int line) {
  if (reinterpret_cast<uintptr_t>(address) % alignof(T) || !address)
    misaligned(address, alignof(T), line);
}

}  // namespace cuda_on_host

#define ON_HOST_ATOMIC(NAME, AFTER)                                                          \
  template <class T>                                                                         \
  ON_HOST_WRAPS __forceinline__ T NAME(T* address, std::common_type_t<T> value, ON_HOST_LINE) { \
    cuda_on_host::check_address(address, line);                                              \
    const T before = *address;                                                               \
    *address = static_cast<T>(AFTER);                                                        \
    return before;                                                                           \
  }                                                                                          \
  template <class T>                                                                         \
  __forceinline__ T NAME##_block(T* address, std::common_type_t<T> value, ON_HOST_LINE) {    \
    return NAME(address, value, line);                                                       \
  }                                                                                          \
  template <class T>                                                                         \
  __forceinline__ T NAME##_system(T* address, std::common_type_t<T> value, ON_HOST_LINE) {   \
    return NAME(address, value, line);                                                       \
  }
ON_HOST_ATOMIC(atomicAdd, before + value)
ON_HOST_ATOMIC(atomicSub, before - value)
ON_HOST_ATOMIC(atomicExch, value)
ON_HOST_ATOMIC(atomicMin, value < before ? value : before)
ON_HOST_ATOMIC(atomicMax, before < value ? value : before)
ON_HOST_ATOMIC(atomicAnd, before & value)
ON_HOST_ATOMIC(atomicOr, before | value)
ON_HOST_ATOMIC(atomicXor, before ^ value)
ON_HOST_ATOMIC(atomicInc, before >= value ? 0 : before + 1)
ON_HOST_ATOMIC(atomicDec, before == 0 || before > value ? value : before - 1)
#undef ON_HOST_ATOMIC

#define ON_HOST_ATOMIC_VECTOR(TYPE, ...)                                              \
  __forceinline__ TYPE atomicAdd(TYPE* address, TYPE value, ON_HOST_LINE) {           \
    cuda_on_host::check_address(address, line);                                       \
    const TYPE a = *address, b = value;                                               \
    *address = {__VA_ARGS__};                                                         \
    return a;                                                                         \
  }
ON_HOST_ATOMIC_VECTOR(float2, a.x + b.x, a.y + b.y)
ON_HOST_ATOMIC_VECTOR(float4, a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w)
#undef ON_HOST_ATOMIC_VECTOR

template <class T>
__forceinline__ T atomicCAS(T* address, std::common_type_t<T> expected,
                            std::common_type_t<T> desired, ON_HOST_LINE) {
  cuda_on_host::check_address(address, line);
  const T before = *address;
  if (before == expected) {
    *address = desired;
  } else {
    cuda_on_host::let_others_run();  // a loop that waits for a lock must not wait forever
  }
  return before;
}
template <class T>
__forceinline__ T atomicCAS_block(T* address, std::common_type_t<T> expected,
                                  std::common_type_t<T> desired, ON_HOST_LINE) {
  return atomicCAS(address, expected, desired, line);
}
template <class T>
__forceinline__ T atomicCAS_system(T* address, std::common_type_t<T> expected,
                                   std::common_type_t<T> desired, ON_HOST_LINE) {
  return atomicCAS(address, expected, desired, line);
}

#define ON_HOST_LOAD(NAME)                                                         \
  template <class T>                                                               \
  ON_HOST_WRAPS __forceinline__ T NAME(const T* address, ON_HOST_LINE) {           \
    cuda_on_host::check_address(address, line);                                    \
    return *address;                                                               \
  }
ON_HOST_LOAD(__ldg)
ON_HOST_LOAD(__ldca)
ON_HOST_LOAD(__ldcg)
ON_HOST_LOAD(__ldcs)
ON_HOST_LOAD(__ldcv)
ON_HOST_LOAD(__ldlu)
#undef ON_HOST_LOAD

#define ON_HOST_STORE(NAME)                                                        \
  template <class T>                                                               \
  ON_HOST_WRAPS __forceinline__ void NAME(T* address, std::common_type_t<T> value, \
                                          ON_HOST_LINE) {                          \
    cuda_on_host::check_address(address, line);                                    \
    *address = value;                                                              \
  }
ON_HOST_STORE(__stcg)
ON_HOST_STORE(__stcs)
ON_HOST_STORE(__stwb)
ON_HOST_STORE(__stwt)
#undef ON_HOST_STORE

// Where an address lies, and its 32 bits in shared memory.
inline unsigned __isShared(const void* p) { return cuda_on_host::is_shared(p); }
inline unsigned __isGlobal(const void* p) { return !cuda_on_host::is_shared(p); }
inline size_t __cvta_generic_to_shared(const void* p, ON_HOST_LINE) { return cuda_on_host::window_of(p, line); }
inline size_t __cvta_generic_to_global(const void* p) { return reinterpret_cast<size_t>(p); }
inline void* __cvta_global_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
inline void* __cvta_shared_to_generic(size_t address, ON_HOST_LINE) {
  return cuda_on_host::shared_at(static_cast<unsigned>(address), 0, 1, "__cvta_shared_to_generic", line);
}
