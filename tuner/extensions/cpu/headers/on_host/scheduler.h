// A block's threads as a kernel sees them: its place in the grid, and barriers.
#pragma once

#pragma GCC visibility push(hidden)

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
// AMD's waves have 64 lanes, or 32.
#ifndef ON_HOST_WARP
#define ON_HOST_WARP 32
#endif
constexpr int warpSize = ON_HOST_WARP;

namespace cuda_on_host {

constexpr unsigned kWarp = ON_HOST_WARP;
// A bit a lane.
using Lanes = std::conditional_t<kWarp == 64, unsigned long long, unsigned>;

// Of clusters, the largest that every GPU with clusters has.
constexpr unsigned kMaxThreads = 1024, kMaxBlocks = 8;

enum class State : unsigned char { unstarted, ready, at_barrier, in_warp, waiting, exited };

struct Fiber;
struct Thread;
using Finish = void (*)(Thread* lanes, Lanes present);

struct Thread {
  State state;
  uint3 index;
  Fiber* fiber;
  int line;           // of the barrier or warp operation it waits at
  const char* waits;  // that operation's name
  Lanes mask, present;  // the lanes it waits for, and those that came
  bool loose;           // it waits for no more than the lanes that take the same branch
  unsigned source;
  unsigned long long value, result;
  Finish finish;
  bool (*done)(const Thread&);  // whether what it waits for has happened
  unsigned votes, voters;       // what the last barrier counted: for how many it held, of how many
  unsigned arrived;             // 1 + the phase of the cluster's barrier that it has to wait for
};

extern Thread* threads;  // of the block whose turn it is
extern unsigned thread_count, current;
extern unsigned char dynamic_shared[];
// The blocks of a cluster, along each axis; its first block, and the rank of the one that runs.
extern dim3 cluster_dim;
extern uint3 cluster_first;
extern unsigned cluster_blocks, block_rank;

void say(const char* format, ...);
[[noreturn]] void give_up(Code code);
void wait_at_barrier(const char* name, int predicate, int line);
// Let the other threads of the block go on: for loops that wait for one of them.
void let_others_run();
void arrive_at_cluster(const char* name, bool whole_warps, int line);
void wait_for_cluster(const char* name, int line);
// Where another block of the cluster has what this one has at `pointer`.
void* peer_of(const void* pointer, unsigned rank, int line);
unsigned rank_of(const void* pointer, int line);
[[noreturn]] void trap(const char* what, int line);
[[noreturn]] void misaligned(const void* address, size_t alignment, int line);
long long ticks();

}  // namespace cuda_on_host

#pragma GCC visibility pop

#define ON_HOST_LINE int line = __builtin_LINE()
// What a GPU computes modulo 2^n is no overflow, whatever C++ says of signed numbers.
#define ON_HOST_WRAPS __attribute__((no_sanitize("undefined")))

inline void __syncthreads(ON_HOST_LINE) {
  cuda_on_host::wait_at_barrier("__syncthreads", 0, line);
}
inline int __syncthreads_count(int predicate, ON_HOST_LINE) {
  cuda_on_host::wait_at_barrier("__syncthreads_count", predicate, line);
  return static_cast<int>(cuda_on_host::threads[cuda_on_host::current].votes);
}
inline int __syncthreads_or(int predicate, ON_HOST_LINE) {
  cuda_on_host::wait_at_barrier("__syncthreads_or", predicate, line);
  return cuda_on_host::threads[cuda_on_host::current].votes != 0;
}
inline int __syncthreads_and(int predicate, ON_HOST_LINE) {
  cuda_on_host::wait_at_barrier("__syncthreads_and", predicate, line);
  const cuda_on_host::Thread& mine = cuda_on_host::threads[cuda_on_host::current];
  return mine.votes == mine.voters;
}
inline long long clock64() { return cuda_on_host::ticks(); }
inline void __nanosleep(unsigned int) { cuda_on_host::let_others_run(); }
// The grid before this one has ended.
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap(ON_HOST_LINE) { cuda_on_host::trap("trapped", line); }

[[noreturn]] inline void __on_host_fails_an_assertion(ON_HOST_LINE) {
  cuda_on_host::trap("fails an assertion", line);
}

extern "C" long clock() noexcept;

#include "../assert.h"
