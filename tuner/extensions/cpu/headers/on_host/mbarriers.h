// Barriers in shared memory that count threads and bytes, and the numbered barriers of a block.
#pragma once

namespace cuda_on_host {

struct Mbarrier {
  unsigned address, arrivals, pending, phase;
  long long bytes;  // that are expected and have not come; below 0 where they came first
  bool fenced;
  int line;
};
static PerBlock<std::vector<Mbarrier>> mbarriers;
// Tests of mbarriers that failed since anything last happened to one.
static unsigned failed_tests;
constexpr unsigned kMostFailedTests = 1000000;
constexpr unsigned long long kMbarrierMark = 0x72656972726162ff;

static Mbarrier* find_mbarrier(unsigned address) {
  for (Mbarrier& one : *mbarriers)
    if (one.address == address) return &one;
  return nullptr;
}

static Mbarrier& mbarrier_at(unsigned address, const char* what, int line) {
  const unsigned char* const storage = shared_at(address, 8, 8, what, line);
  Mbarrier* const found = find_mbarrier(address);
  if (!found) fault(line, "%s: no mbarrier was initialized at the address %u", what, address);
  unsigned long long held;
  memcpy(&held, storage, sizeof held);
  if (held != kMbarrierMark)
    fault(line, "%s: something else was written over the mbarrier at the address %u", what, address);
  return *found;
}

void init_mbarrier(unsigned address, unsigned arrivals, int line) {
  memcpy(shared_at(address, 8, 8, "mbarrier_init", line), &kMbarrierMark, sizeof kMbarrierMark);
  if (arrivals < 1 || arrivals >= 1u << 20) fault(line, "mbarrier_init for %u arrivals", arrivals);
  drop_mbarrier(address, line);
  mbarriers->push_back({address, arrivals, arrivals, 0, 0, false, line});
}

void drop_mbarrier(unsigned address, int) {
  Mbarrier* const found = find_mbarrier(address);
  if (found) mbarriers->erase(mbarriers->begin() + (found - mbarriers->data()));
}

static void settle(Mbarrier& one, int line) {
  failed_tests = 0;
  if (one.pending) return;
  if (one.bytes < 0)
    fault(line, "%lld bytes more land than the mbarrier at the address %u expects", -one.bytes, one.address);
  if (one.bytes) return;
  one.phase ^= 1;
  one.pending = one.arrivals;
}

static void complete(unsigned address, unsigned bytes, int line) {
  Mbarrier& one = mbarrier_at(address, "a copy", line);
  one.bytes -= bytes;
  settle(one, line);
}

void arrive(unsigned address, unsigned bytes, int line) {
  Mbarrier& one = mbarrier_at(address, "mbarrier_arrive", line);
  if (!one.pending)
    fault(line, "more than the %u arrivals that the mbarrier at the address %u has in a phase", one.arrivals, address);
  one.bytes += bytes;
  --one.pending;
  settle(one, line);
}

void arrive_at_peer(unsigned mapped, int line) {
  Visit visit(mapped, "cluster_mbarrier_arrive", line);
  arrive(visit.address, 0, line);
}

void expect_bytes(unsigned address, unsigned bytes, int line) {
  mbarrier_at(address, "mbarrier_expect_tx", line).bytes += bytes;
}

unsigned phase_of_mbarrier(unsigned address, int line) {
  return mbarrier_at(address, "mbarrier_arrive", line).phase;
}

static bool is_complete(unsigned address, unsigned parity, int line) {
  return mbarrier_at(address, "mbarrier_wait", line).phase != (parity & 1);
}

static void wait_until(const char* name, bool (*done)(const Thread&), int line) {
  Thread& thread = threads[current];
  if (done(thread)) return;
  thread.waits = name;
  thread.line = line;
  thread.done = done;
  thread.state = State::waiting;
  suspend();
}

void wait_for_mbarrier(unsigned address, unsigned parity, int line) {
  threads[current].value = address;
  threads[current].source = parity;
  mbarrier_at(address, "mbarrier_wait", line);
  wait_until(
      "mbarrier_wait", [](const Thread& one) { return is_complete(one.value, one.source, one.line); }, line);
}

bool test_mbarrier(unsigned address, unsigned parity, int line) {
  threads[current].waits = "mbarrier_try_wait";
  threads[current].line = line;
  if (is_complete(address, parity, line)) return true;
  if (++failed_tests > kMostFailedTests) give_up_stuck("a wait that never ends");
  let_others_run();
  return is_complete(address, parity, line);
}

// Say what a thread that will wait forever lacks.
static void describe_wait(char* text, size_t size) {
  text[0] = 0;
  for (unsigned i = 0; i < thread_count; ++i) {
    const Thread& one = threads[i];
    if (one.state != State::waiting || strcmp(one.waits, "mbarrier_wait")) continue;
    const Mbarrier* const found = find_mbarrier(static_cast<unsigned>(one.value));
    if (found)
      snprintf(text, size, "; the mbarrier of line %d, waited for with parity %u, lacks %u arrivals and %lld bytes",
               found->line, one.source & 1, found->pending, found->bytes);
    return;
  }
}

struct Meeting {
  unsigned wanted, here, rounds;
};
static PerBlock<Meeting[16]> meetings;

void meet(unsigned number, unsigned wanted, bool wait, int line) {
  if (number < 1 || number > 15) fault(line, "named barrier %u: there are 1 to 15, and 0 is __syncthreads", number);
  if (wanted == 0 || wanted % 32) fault(line, "a named barrier of %u threads: whole warps meet", wanted);
  Meeting& one = (*meetings)[number];
  if (one.here && one.wanted != wanted)
    fault(line, "named barrier %u of %u threads, where others said %u", number, wanted, one.wanted);
  one.wanted = wanted;
  threads[current].value = number;
  threads[current].source = one.rounds;
  if (++one.here == wanted) {
    one.here = 0;
    ++one.rounds;
  }
  if (wait)
    wait_until(
        "named_barrier_sync", [](const Thread& t) { return (*meetings)[t.value].rounds != t.source; }, line);
}

static void begin_meetings() {
  for (Meeting& one : *meetings) one = {};
  failed_tests = 0;
}

}  // namespace cuda_on_host
