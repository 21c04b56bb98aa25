// Programmatic dependent launch. A kernel with the attribute may begin while the launches before it
// are at work. Until it has waited it neither reads nor writes global memory: they may still write
// what it reads, and still read what it writes. A prefetch into the L2 is no read: all writers go
// through the L2, so that what is written later is seen all the same.

// Lets the next launch begin before this one has ended. What that one does before its own wait then
// happens beside this launch and those before it: right only where it is known to touch no memory
// until it has waited. Without this call it begins when all blocks of this launch have ended.
__device__ __forceinline__ void let_next_launch_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Returns when all launches before this one have ended and what they wrote can be read.
__device__ __forceinline__ void wait_for_launches_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// A pointer to use after the wait, or for another look at the same memory. With that from before,
// the compiler, for which nobody else writes what a const __restrict__ pointer leads to, moves loads
// in front of the wait, or keeps what was read first.
template <class T>
__device__ __forceinline__ T* launder_after_wait(T* pointer) {
#ifndef __CUDA_ON_HOST__
  asm volatile("" : "+l"(pointer)::"memory");
  __builtin_assume(__isGlobal(pointer));
#endif
  return pointer;
}

// Asks for the line at an address in the L2; the one thing that may come before the wait.
__device__ __forceinline__ void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
