// HIP's names for the CPU device, whose warps are compiled as wide as the GPU's waves.
#pragma once

#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z
#define HIP_DYNAMIC_SHARED(type, name) \
  type(&name)[] __attribute__((unused)) = *reinterpret_cast<type(*)[]>(__on_host_dynamic_shared());
inline void* __on_host_dynamic_shared() { return cuda_on_host::dynamic_shared; }
#define HIP_KERNEL_NAME(...) __VA_ARGS__
typedef struct ihipStream_t* hipStream_t;

namespace cuda_on_host {

inline void finish_first(Thread* lanes, Lanes present) {
  const unsigned first = __builtin_ctzll(present);
  for (unsigned i = first; i < kWarp; ++i)
    if (present >> i & 1) lanes[i].result = lanes[first].value;
}

template <class T>
T shuffle_of_branch(const char* name, T value, int source, int line) {
  return shuffle(name, ~Lanes(0), value, static_cast<unsigned>(source), line, true);
}

inline Lanes ballot_of_branch(const char* name, bool holds, int line) {
  return static_cast<Lanes>(in_warp(name, finish_ballot, ~Lanes(0), holds, 0, line, true));
}

}  // namespace cuda_on_host

inline unsigned __lane_id() { return cuda_on_host::lane_of(cuda_on_host::current); }

template <class T>
T __shfl(T value, int source, int width = warpSize, ON_HOST_LINE) {
  const int lane = __lane_id();
  return cuda_on_host::shuffle_of_branch("__shfl", value, (lane & ~(width - 1)) + (source & (width - 1)), line);
}
template <class T>
T __shfl_up(T value, unsigned delta, int width = warpSize, ON_HOST_LINE) {
  const int lane = __lane_id(), from = lane - static_cast<int>(delta);
  return cuda_on_host::shuffle_of_branch("__shfl_up", value, from < (lane & ~(width - 1)) ? lane : from, line);
}
template <class T>
T __shfl_down(T value, unsigned delta, int width = warpSize, ON_HOST_LINE) {
  const int lane = __lane_id(), from = lane + static_cast<int>(delta);
  return cuda_on_host::shuffle_of_branch("__shfl_down", value, from >= (lane & ~(width - 1)) + width ? lane : from, line);
}
template <class T>
T __shfl_xor(T value, int mask, int width = warpSize, ON_HOST_LINE) {
  const int lane = __lane_id(), from = lane ^ mask;
  return cuda_on_host::shuffle_of_branch("__shfl_xor", value, from >= (lane & ~(width - 1)) + width ? lane : from, line);
}
inline unsigned long long __ballot(int predicate, ON_HOST_LINE) {
  return cuda_on_host::ballot_of_branch("__ballot", predicate != 0, line);
}
inline int __any(int predicate, ON_HOST_LINE) {
  return cuda_on_host::ballot_of_branch("__any", predicate != 0, line) != 0;
}
inline int __all(int predicate, ON_HOST_LINE) {
  return cuda_on_host::ballot_of_branch("__all", predicate == 0, line) == 0;
}

// What kernels most often take from the compiler itself; the others are an error that says so.
inline unsigned __builtin_amdgcn_workitem_id_x() { return threadIdx.x; }
inline unsigned __builtin_amdgcn_workgroup_id_x() { return blockIdx.x; }
inline unsigned __builtin_amdgcn_workgroup_size_x() { return blockDim.x; }
inline void __builtin_amdgcn_s_barrier(ON_HOST_LINE) {
  cuda_on_host::wait_at_barrier("s_barrier", 0, line);
}
inline void __builtin_amdgcn_sched_barrier(int) {}
inline void __builtin_amdgcn_s_setprio(int) {}
inline int __builtin_amdgcn_readfirstlane(int value, ON_HOST_LINE) {
  using namespace cuda_on_host;
  return static_cast<int>(in_warp("readfirstlane", finish_first, ~Lanes(0), static_cast<unsigned>(value), 0, line, true));
}
inline int __builtin_amdgcn_ds_bpermute(int address, int value, ON_HOST_LINE) {
  return cuda_on_host::shuffle_of_branch("ds_bpermute", value, address / 4 % warpSize, line);
}
inline float __builtin_amdgcn_rcpf(float x) { return 1.0f / x; }
inline float __builtin_amdgcn_rsqf(float x) { return 1.0f / sqrtf(x); }
inline float __builtin_amdgcn_sqrtf(float x) { return sqrtf(x); }
inline float __builtin_amdgcn_exp2f(float x) { return exp2f(x); }
inline float __builtin_amdgcn_logf(float x) { return log2f(x); }
inline float __builtin_amdgcn_fmed3f(float x, float y, float z) {
  return fmaxf(fminf(x, y), fminf(fmaxf(x, y), z));
}
template <class T>
T __builtin_nontemporal_load(const T* address) { return *address; }
template <class T, class V>
void __builtin_nontemporal_store(V value, T* address) { *address = static_cast<T>(value); }
