// Giving a grid up: the message for the worker, and the way out of whichever fiber runs.
#pragma once

namespace cuda_on_host {

static void* abandon[5];
static Code abandon_code;

void say(const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  vsnprintf(active->message, active->message_bytes, format, rest);
  va_end(rest);
}

static const char* thread_name() {
  static char text[96];
  snprintf(text, sizeof text, "thread (%u,%u,%u) of block (%u,%u,%u)", threadIdx.x, threadIdx.y,
           threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z);
  return text;
}

__attribute__((noinline)) static void leave_for_good() {
#ifdef ON_HOST_ADDRESS
  if (main_bottom) __sanitizer_start_switch_fiber(nullptr, main_bottom, main_bytes);
#endif
  __builtin_longjmp(abandon, 1);
}

[[noreturn]] void give_up(Code code) {
  abandon_code = code;
  leave_for_good();
  __builtin_unreachable();
}

[[noreturn]] void trap(const char* what, int line) {
  say("%s %s (line %d)", thread_name(), what, line);
  give_up(kStuck);
}

void misaligned(const void* address, size_t alignment, int line) {
  say("kernel.cu(%d): misaligned access: the address %p is no multiple of %zu, by %s", line, address,
      alignment, thread_name());
  give_up(kSanitizer);
}

// What a kernel did wrong at a line of its own.
[[noreturn]] static void fault(int line, const char* format, ...) {
  char what[600];
  va_list rest;
  va_start(rest, format);
  vsnprintf(what, sizeof what, format, rest);
  va_end(rest);
  say("kernel.cu(%d): %s, by %s", line, what, thread_name());
  give_up(kSanitizer);
}

static int refuse(const char* format, unsigned a, unsigned b, unsigned c) {
  say(format, a, b, c);
  return kRefused;
}

// Where the threads are, as "32 have ended, 96 wait at __syncthreads (line 12)".
static void describe_block(char* text, size_t size) {
  size_t used = 0;
  const unsigned ended = thread_count - *alive;
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

static void describe_wait(char* text, size_t size);

static void turn_to(unsigned rank);

[[noreturn]] static void give_up_stuck(const char* what) {
  char places[600], lacks[200] = "";
  size_t used = 0;
  for (unsigned rank = 0; cluster_blocks > 1 && rank < cluster_blocks && used + 100 < sizeof places; ++rank) {
    turn_to(rank);
    used += snprintf(places + used, sizeof places - used, "%s(%u,%u,%u) ", rank ? "; of " : "", blockIdx.x,
                     blockIdx.y, blockIdx.z);
    describe_block(places + used, sizeof places - used);
    used = strlen(places);
    if (!*lacks) describe_wait(lacks, sizeof lacks);
  }
  if (used) {
    say("%s in a cluster of %u blocks of %u threads: of %s%s", what, cluster_blocks, thread_count, places, lacks);
    give_up(kStuck);
  }
  describe_block(places, sizeof places);
  describe_wait(lacks, sizeof lacks);
  say("%s in block (%u,%u,%u): of its %u threads %s%s", what, blockIdx.x, blockIdx.y, blockIdx.z,
      thread_count, places, lacks);
  give_up(kStuck);
}

}  // namespace cuda_on_host
