// Signals become messages while a grid runs.
#pragma once

namespace cuda_on_host {

static void on_signal(int number, siginfo_t* info, void*) {
  const char* what = number == SIGFPE ? "divides an integer by zero" : "uses an illegal address";
  if (number == SIGALRM) what = "had not ended in time";
  char place[64] = "";
  if (number == SIGSEGV || number == SIGBUS) snprintf(place, sizeof place, " %p", info->si_addr);
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
