// Runs a grid: blocks in turn, each block's threads as fibers that switch at barriers.
//
// A fiber is entered once with ucontext and switched with _setjmp afterwards, which saves no signal
// mask and so needs no system call. A thread that never waits costs two switches and no new stack.
#pragma once

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

namespace cuda_on_host {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxSharedBytes = 227 * 1024;
constexpr size_t kStackBytes = 256 * 1024, kGuardBytes = 4096;
constexpr unsigned kSharedGuardBytes = 1024;
constexpr unsigned char kUnwritten = 0xFF, kGuard = 0xA5;

enum Code { kDone = 0, kRefused = 1, kStuck = 2, kTimeout = 3, kFault = 4 };

// What the worker passes, in ctypes; keep equal to host_worker.py.
struct Launch {
  unsigned grid[3], block[3];
  unsigned shared_bytes, arguments, backwards;
  double timeout_s;
  void* const* values;
  const unsigned* sizes;
  char* message;
  size_t message_bytes;
};

enum class State : unsigned char { unstarted, ready, at_barrier, in_warp, exited };

struct Fiber {
  jmp_buf context;
  ucontext_t entry;
  char* stack;
  bool started;
};

struct Thread {
  State state;
  uint3 index;
  Fiber* fiber;
  int line;            // of the barrier or warp operation it waits at
  const char* waits;   // that operation's name
  unsigned mask, source;
  unsigned long long value, result;
};

static Thread threads[kMaxThreads];
static Fiber fibers[kMaxThreads];
static Fiber* free_fibers[kMaxThreads];
static unsigned free_count, thread_count, alive, at_barrier, current;
static char* stacks;
static const Launch* active;
static void (*run_thread)();
static jmp_buf scheduler, abandon;
static Code abandon_code;
alignas(1024) static unsigned char dynamic_shared[kMaxSharedBytes + kSharedGuardBytes];

struct Cleanup {
  ~Cleanup() {
    if (stacks) munmap(stacks, kMaxThreads * (kStackBytes + kGuardBytes));
  }
};
static Cleanup cleanup;

static void say(const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  vsnprintf(active->message, active->message_bytes, format, rest);
  va_end(rest);
}

[[noreturn]] static void give_up(Code code) {
  abandon_code = code;
  _longjmp(abandon, 1);
}

__attribute__((noinline)) static void suspend() {
  if (!_setjmp(threads[current].fiber->context)) _longjmp(scheduler, 1);
}

static void fiber_main() {
  for (;;) {
    run_thread();
    threads[current].state = State::exited;
    suspend();
  }
}

__attribute__((noinline)) static void enter(Fiber* fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber->started) _longjmp(fiber->context, 1);
  fiber->started = true;
  getcontext(&fiber->entry);
  fiber->entry.uc_stack.ss_sp = fiber->stack;
  fiber->entry.uc_stack.ss_size = kStackBytes;
  fiber->entry.uc_link = nullptr;
  makecontext(&fiber->entry, fiber_main, 0);
  setcontext(&fiber->entry);
}

static void resume(unsigned index) {
  Thread& thread = threads[index];
  if (thread.state == State::unstarted) thread.fiber = free_fibers[--free_count];
  thread.state = State::ready;
  current = index;
  threadIdx = thread.index;
  enter(thread.fiber);
  if (thread.state == State::exited) {
    free_fibers[free_count++] = thread.fiber;
    --alive;
  }
}

// Where the threads are, as "32 have ended, 96 wait at __syncthreads (line 12)".
static void describe_block(char* text, size_t size) {
  size_t used = 0;
  unsigned ended = thread_count - alive;
  text[0] = 0;
  if (ended) used += snprintf(text, size, "%u have ended, ", ended);
  bool told[kMaxThreads] = {};
  for (unsigned i = 0; i < thread_count && used + 100 < size; ++i) {
    const Thread& one = threads[i];
    if (told[i] || one.state == State::exited) continue;
    unsigned same = 0;
    for (unsigned k = i; k < thread_count; ++k) {
      const Thread& other = threads[k];
      if (other.state == State::exited || other.line != one.line || other.waits != one.waits)
        continue;
      told[k] = true;
      ++same;
    }
    used += snprintf(text + used, size - used, "%u wait at %s (line %d), ", same, one.waits,
                     one.line);
  }
  if (used >= 2) text[used - 2] = 0;
}

[[noreturn]] static void give_up_stuck(const char* what) {
  char places[600];
  describe_block(places, sizeof places);
  say("%s in block (%u,%u,%u): of its %u threads %s", what, blockIdx.x, blockIdx.y, blockIdx.z,
      thread_count, places);
  give_up(kStuck);
}

static unsigned barrier_count, barrier_released;

static void release_barrier() {
  int line = 0;
  for (unsigned i = 0; i < thread_count; ++i) {
    if (threads[i].state == State::exited || (line && threads[i].line != line))
      give_up_stuck("divergent barrier");
    line = threads[i].line;
  }
  for (unsigned i = 0; i < thread_count; ++i) threads[i].state = State::ready;
  barrier_released = barrier_count;
  at_barrier = barrier_count = 0;
}

// Threads of a warp that wait for lanes which have ended meanwhile go on.
static bool release_warps();

static void run_block() {
  for (unsigned i = 0; i < thread_count; ++i) threads[i].state = State::unstarted;
  alive = thread_count;
  at_barrier = barrier_count = 0;
  while (alive) {
    bool moved = false;
    for (unsigned k = 0; k < thread_count; ++k) {
      const unsigned i = active->backwards ? thread_count - 1 - k : k;
      if (threads[i].state > State::ready) continue;
      moved = true;
      resume(i);
    }
    if (alive && at_barrier == alive) {
      release_barrier();
    } else if (!moved && !release_warps()) {
      give_up_stuck(at_barrier ? "divergent barrier" : "divergent warp operation");
    }
  }
}

static void on_signal(int number, siginfo_t* info, void*) {
  const char* what = number == SIGFPE ? "divides an integer by zero" : "uses an illegal address";
  if (number == SIGALRM) what = "had not ended in time";
  char place[64] = "";
  if (number == SIGSEGV || number == SIGBUS) snprintf(place, sizeof place, " %p", info->si_addr);
  say("thread (%u,%u,%u) of block (%u,%u,%u) %s%s", threadIdx.x, threadIdx.y, threadIdx.z,
      blockIdx.x, blockIdx.y, blockIdx.z, what, place);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, number);
  sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  give_up(number == SIGALRM ? kTimeout : kFault);
}

// Signals become messages while a grid runs; the handler has a stack of its own, for a fiber's
// may be what overflowed.
struct Signals {
  static constexpr int kCaught[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGALRM};
  struct sigaction before[4];
  stack_t stack_before;
  explicit Signals(double timeout_s) {
    static char handler_stack[64 * 1024];
    stack_t stack = {};
    stack.ss_sp = handler_stack;
    stack.ss_size = sizeof handler_stack;
    sigaltstack(&stack, &stack_before);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 4; ++i) sigaction(kCaught[i], &action, &before[i]);
    set_timer(timeout_s);
  }
  ~Signals() {
    set_timer(0);
    for (int i = 0; i < 4; ++i) sigaction(kCaught[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
  static void set_timer(double seconds) {
    itimerval timer = {};
    timer.it_value.tv_sec = static_cast<time_t>(seconds);
    timer.it_value.tv_usec = static_cast<suseconds_t>((seconds - floor(seconds)) * 1e6);
    setitimer(ITIMER_REAL, &timer, nullptr);
  }
};

static bool prepare_stacks() {
  constexpr size_t each = kStackBytes + kGuardBytes;
  if (!stacks) {
    void* memory = mmap(nullptr, kMaxThreads * each, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    stacks = static_cast<char*>(memory);
    for (unsigned i = 0; i < kMaxThreads; ++i) mprotect(stacks + i * each, kGuardBytes, PROT_NONE);
  }
  // A grid that was given up leaves fibers in the middle of a thread: all begin anew.
  for (unsigned i = 0; i < kMaxThreads; ++i) {
    fibers[i].stack = stacks + i * each + kGuardBytes;
    fibers[i].started = false;
    free_fibers[i] = &fibers[i];
  }
  free_count = kMaxThreads;
  return true;
}

static void check_shared_guard() {
  const unsigned char* guard = dynamic_shared + active->shared_bytes;
  for (unsigned i = 0; i < kSharedGuardBytes; ++i) {
    if (guard[i] == kGuard) continue;
    say("block (%u,%u,%u) wrote past the %u bytes of its dynamic shared memory", blockIdx.x,
        blockIdx.y, blockIdx.z, active->shared_bytes);
    give_up(kStuck);
  }
}

static void run_grid() {
  const unsigned long long blocks = 1ull * gridDim.x * gridDim.y * gridDim.z;
  memset(dynamic_shared + active->shared_bytes, kGuard, kSharedGuardBytes);
  for (unsigned long long k = 0; k < blocks; ++k) {
    const unsigned long long i = active->backwards ? blocks - 1 - k : k;
    blockIdx = {static_cast<unsigned>(i % gridDim.x),
                static_cast<unsigned>(i / gridDim.x % gridDim.y),
                static_cast<unsigned>(i / gridDim.x / gridDim.y)};
    memset(dynamic_shared, kUnwritten, active->shared_bytes);
    run_block();
    if (active->shared_bytes) check_shared_guard();
  }
}

static int refuse(const char* format, unsigned a, unsigned b, unsigned c) {
  say(format, a, b, c);
  return kRefused;
}

static int run(const Launch* launch) {
  const unsigned(&b)[3] = launch->block;
  active = launch;
  thread_count = b[0] * b[1] * b[2];
  if (1ull * b[0] * b[1] * b[2] > kMaxThreads || thread_count == 0)
    return refuse("a block of (%u,%u,%u) threads: 1 to 1024 are possible", b[0], b[1], b[2]);
  if (launch->shared_bytes > kMaxSharedBytes)
    return refuse("%u bytes of dynamic shared memory: at most %u are possible",
                  launch->shared_bytes, kMaxSharedBytes, 0);
  if (!prepare_stacks()) return refuse("no memory for the stacks of %u threads", kMaxThreads, 0, 0);
  gridDim = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
  blockDim = dim3(b[0], b[1], b[2]);
  for (unsigned i = 0; i < thread_count; ++i)
    threads[i].index = {i % b[0], i / b[0] % b[1], i / b[0] / b[1]};
  Signals signals(launch->timeout_s);
  if (_setjmp(abandon)) return abandon_code;
  run_grid();
  return kDone;
}

// The arguments of the kernel that runs, unpacked for each thread.
template <class... Types>
struct Call {
  static inline void (*kernel)(Types...);

  template <size_t... I>
  static void with(std::integer_sequence<size_t, I...>) {
    kernel(*static_cast<std::remove_reference_t<Types>*>(active->values[I])...);
  }
  static void thread() { with(std::make_integer_sequence<size_t, sizeof...(Types)>()); }
};

template <class... Types>
int launch(const Launch* launch, void (*kernel)(Types...)) {
  constexpr unsigned wanted = sizeof...(Types);
  const unsigned sizes[wanted + 1] = {static_cast<unsigned>(sizeof(Types))..., 0};
  active = launch;
  if (launch->arguments != wanted)
    return refuse("the kernel has %u parameters, but %u arguments are declared", wanted,
                  launch->arguments, 0);
  for (unsigned i = 0; i < wanted; ++i) {
    if (sizes[i] != launch->sizes[i])
      return refuse("parameter %u of the kernel has %u bytes, but the declared argument has %u",
                    i + 1, sizes[i], launch->sizes[i]);
  }
  Call<Types...>::kernel = kernel;
  run_thread = Call<Types...>::thread;
  return run(launch);
}

static void wait_at_barrier(const char* name, int line) {
  Thread& thread = threads[current];
  thread.state = State::at_barrier;
  thread.waits = name;
  thread.line = line;
  ++at_barrier;
  suspend();
}

// Let the other threads of the block go on: for loops that wait for one of them.
static void let_others_run() { suspend(); }

}  // namespace cuda_on_host

inline void __syncthreads(int line = __builtin_LINE()) {
  cuda_on_host::wait_at_barrier("__syncthreads", line);
}
inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  cuda_on_host::barrier_count += predicate != 0;
  cuda_on_host::wait_at_barrier("__syncthreads_count", line);
  return static_cast<int>(cuda_on_host::barrier_released);
}
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return __syncthreads_count(predicate, line) != 0;
}
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  return __syncthreads_count(predicate, line) == static_cast<int>(cuda_on_host::thread_count);
}
inline void __nanosleep(unsigned int) { cuda_on_host::let_others_run(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap() {
  cuda_on_host::say("thread (%u,%u,%u) of block (%u,%u,%u) trapped", threadIdx.x, threadIdx.y,
                    threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z);
  cuda_on_host::give_up(cuda_on_host::kStuck);
}
