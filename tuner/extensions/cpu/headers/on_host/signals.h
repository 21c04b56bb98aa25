// Signals become messages while a grid runs.
#pragma once

namespace cuda_on_host {

// Where an address is that a kernel may not use, by the parameter that starts nearest before it.
static void describe_address(const char* address, char* text, size_t size) {
  const unsigned count = active->guard_count;
  const Range* const guards = active->guards;
  int used = snprintf(text, size, " ");
  if (describe_peer(address, text + used, size - static_cast<size_t>(used))) return;
  used = snprintf(text, size, " %p", static_cast<const void*>(address));
  if (!count || address < guards[0].start ||
      address >= guards[count - 1].start + guards[count - 1].bytes)
    return;
  bool outside = false;
  for (unsigned i = 0; i < count; ++i)
    outside |= address >= guards[i].start && address < guards[i].start + guards[i].bytes;
  unsigned nearest = 0;
  const char* best = nullptr;
  for (unsigned i = 0; i < active->arguments; ++i) {
    if (active->sizes[i] != sizeof(char*)) continue;
    const char* const start = *static_cast<char* const*>(active->values[i]);
    if (start <= address && start >= best && start >= guards[0].start) best = start, nearest = i + 1;
  }
  text += used, size -= static_cast<size_t>(used);
  if (!outside)
    snprintf(text, size, ": it writes to its input, parameter %u", nearest);
  else if (nearest)
    snprintf(text, size, ": %zu bytes from the start of parameter %u, beyond its end",
             static_cast<size_t>(address - best), nearest);
  else
    snprintf(text, size, ": before the first buffer");
}

// The sanitizer looks up lines while it reports, which takes longer than a launch may on a busy
// host; to jump out of that would lose what it found. Whoever waits for the launch ends it if need be.
static bool reporting() {
#ifdef ON_HOST_ADDRESS
  return __asan_report_present();
#else
  return false;
#endif
}

static void on_signal(int number, siginfo_t* info, void*) {
  if (number == SIGALRM && reporting()) return;
  const char* what = number == SIGFPE ? "divides an integer by zero" : "uses an illegal address";
  if (number == SIGALRM) what = "had not ended in time";
  char place[200] = "";
  if (number == SIGSEGV || number == SIGBUS)
    describe_address(static_cast<const char*>(info->si_addr), place, sizeof place);
  say("%s %s%s", thread_name(), what, place);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, number);
  sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  give_up(number == SIGALRM ? kTimeout : kFault);
}

// The handler has a stack of its own, for a fiber's may be what overflowed. The address sanitizer
// explains the deadly signals itself, with the line.
struct Signals {
#ifdef ON_HOST_ADDRESS
  static constexpr int kCaught[] = {SIGALRM};
#else
  static constexpr int kCaught[] = {SIGALRM, SIGSEGV, SIGBUS, SIGFPE};
#endif
  static constexpr int kCount = sizeof kCaught / sizeof *kCaught;
  struct sigaction before[kCount];
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
    for (int i = 0; i < kCount; ++i) sigaction(kCaught[i], &action, &before[i]);
    set_timer(timeout_s);
  }
  ~Signals() {
    set_timer(0);
    for (int i = 0; i < kCount; ++i) sigaction(kCaught[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
  static void set_timer(double seconds) {
    itimerval timer = {};
    timer.it_value.tv_sec = static_cast<time_t>(seconds);
    timer.it_value.tv_usec = static_cast<suseconds_t>((seconds - floor(seconds)) * 1e6);
    setitimer(ITIMER_REAL, &timer, nullptr);
  }
};

}  // namespace cuda_on_host
