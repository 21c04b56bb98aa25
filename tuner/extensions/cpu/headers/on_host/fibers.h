// Fibers: entered once with ucontext, then switched with the compiler's own setjmp.
//
// That one saves no signal mask, so a switch needs no system call; and the address sanitizer does
// not take its jumps for the end of the frames that wait. A thread that never waits costs two
// switches and no new stack.
#pragma once

namespace cuda_on_host {

constexpr size_t kStackBytes = 256 * 1024, kGuardBytes = 4096;
constexpr size_t kFiberBytes = kStackBytes + kGuardBytes;
constexpr unsigned kMaxFibers = kMaxBlocks * kMaxThreads;

struct Fiber {
  void* context[5];
  ucontext_t entry;
  char* stack;
  void* fake_stack;
  bool started;
};

static Fiber fibers[kMaxFibers];
static Fiber* free_fibers[kMaxFibers];
static unsigned stack_count, free_count;
static PerBlock<unsigned> alive;
static char* stacks;
static void* scheduler[5];
static Kernel kernel;
static const void* main_bottom;
static size_t main_bytes;
// A grid that was given up leaves fibers in the middle of a thread.
static bool fibers_left = true;

static void end_of_copies();
static void load_block();
static void leave_cluster(Thread& thread);

static void release_stacks() {
  if (!stacks) return;
#ifdef ON_HOST_ADDRESS
  __asan_unpoison_memory_region(stacks, stack_count * kFiberBytes);
#endif
  munmap(stacks, stack_count * kFiberBytes);
  stacks = nullptr;
}

struct Cleanup {
  ~Cleanup() { release_stacks(); }
};
static Cleanup cleanup;

static bool prepare_stacks(unsigned wanted) {
  if (wanted > stack_count) release_stacks();
  if (!stacks) {
    stack_count = std::max(wanted, kMaxThreads);
    void* memory = mmap(nullptr, stack_count * kFiberBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) stack_count = 0;
    if (memory == MAP_FAILED) return false;
    stacks = static_cast<char*>(memory);
    for (unsigned i = 0; i < stack_count; ++i)
      mprotect(stacks + i * kFiberBytes, kGuardBytes, PROT_NONE);
    fibers_left = true;
  }
  if (!fibers_left) return true;
#ifdef ON_HOST_ADDRESS
  __asan_unpoison_memory_region(stacks, stack_count * kFiberBytes);
#endif
  for (unsigned i = 0; i < stack_count; ++i) {
    fibers[i].stack = stacks + i * kFiberBytes + kGuardBytes;
    fibers[i].started = false;
    free_fibers[stack_count - 1 - i] = &fibers[i];
  }
  free_count = stack_count;
  return true;
}

// Not in one function with the setjmp: the compiler may take such jumps for ordinary ones.
__attribute__((noinline, noclone)) static void jump(void** context) {
  __builtin_longjmp(context, 1);
}

__attribute__((noinline, noclone)) static void leave(Fiber* fiber) {
  if (__builtin_setjmp(fiber->context)) return;
  jump(scheduler);
}

__attribute__((noinline)) static void suspend() {
  Fiber* fiber = threads[current].fiber;
#ifdef ON_HOST_ADDRESS
  __sanitizer_start_switch_fiber(&fiber->fake_stack, main_bottom, main_bytes);
#endif
  leave(fiber);
#ifdef ON_HOST_ADDRESS
  __sanitizer_finish_switch_fiber(fiber->fake_stack, nullptr, nullptr);
#endif
}

static void fiber_main() {
#ifdef ON_HOST_ADDRESS
  __sanitizer_finish_switch_fiber(nullptr, &main_bottom, &main_bytes);
#endif
  for (;;) {
    kernel.thread(kernel.function, active->values);
    end_of_copies();
    threads[current].state = State::exited;
    suspend();
  }
}

__attribute__((noinline)) static void begin(Fiber* fiber) {
  fiber->started = true;
  getcontext(&fiber->entry);
  fiber->entry.uc_stack.ss_sp = fiber->stack;
  fiber->entry.uc_stack.ss_size = kStackBytes;
  fiber->entry.uc_link = nullptr;
  makecontext(&fiber->entry, fiber_main, 0);
  setcontext(&fiber->entry);
}

__attribute__((noinline, noclone)) static void switch_to(Fiber* fiber) {
  if (__builtin_setjmp(scheduler)) return;
  if (fiber->started) jump(fiber->context);
  begin(fiber);
}

static void enter(Fiber* fiber) {
#ifdef ON_HOST_ADDRESS
  void* fake_stack;
  __sanitizer_start_switch_fiber(&fake_stack, fiber->stack, kStackBytes);
#endif
  switch_to(fiber);
#ifdef ON_HOST_ADDRESS
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

static void resume(unsigned index) {
  Thread& thread = threads[index];
  if (thread.state == State::unstarted) thread.fiber = free_fibers[--free_count];
  thread.state = State::ready;
  current = index;
  threadIdx = thread.index;
  load_block();
  enter(thread.fiber);
  if (thread.state == State::exited) {
    free_fibers[free_count++] = thread.fiber;
    leave_cluster(thread);
    --*alive;
  }
}

}  // namespace cuda_on_host
