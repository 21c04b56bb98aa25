// Runs a grid: blocks in turn, each block's threads until all have ended.
#pragma once

namespace cuda_on_host {

unsigned barrier_threads, barrier_votes;
static unsigned at_barrier, votes;

void wait_at_barrier(const char* name, int predicate, int line) {
  Thread& thread = threads[current];
  thread.state = State::at_barrier;
  thread.waits = name;
  thread.line = line;
  votes += predicate != 0;
  ++at_barrier;
  suspend();
}

void let_others_run() { suspend(); }

// The CUDA programming guide lets a barrier "succeed" when "all non-exited threads in the block"
// have reached it, so threads that have ended don't count, and neither do those that pass by on
// their way to the end. It also wants a barrier in conditional code only where "the conditional
// evaluates identically across the entire thread block": two groups that meet at different
// barriers are refused, although today's hardware would take them for one.
static void release_barrier() {
  const Thread* first = nullptr;
  for (unsigned i = 0; i < thread_count; ++i) {
    const Thread& one = threads[i];
    if (one.state == State::exited) continue;
    if (!first) first = &one;
    if (one.line != first->line || one.waits != first->waits) give_up_stuck("divergent barrier");
  }
  for (unsigned i = 0; i < thread_count; ++i)
    if (threads[i].state == State::at_barrier) threads[i].state = State::ready;
  barrier_threads = at_barrier;
  barrier_votes = votes;
  at_barrier = votes = 0;
}

// Give every thread that can go on one turn; say whether there was one. In a random order warps
// also miss turns, so that some run ahead of others.
static bool pass() {
  const bool random = random_order();
  if (random) draw_turns();
  bool moved = false, missed = false;
  land_one(failed_tests > thread_count);
  for (unsigned turn = 0; turn < thread_count; ++turn) {
    if (random && turn % 32 == 0) missed = moved && random_below(4) == 0;
    const unsigned i = thread_at(turn);
    Thread& thread = threads[i];
    if (thread.state == State::waiting && thread.done(thread)) thread.state = State::ready;
    if (missed || thread.state > State::ready) continue;
    moved = true;
    resume(i);
  }
  publish();
  return moved;
}

static bool waits_forever() {
  for (unsigned i = 0; i < thread_count; ++i)
    if (threads[i].state == State::waiting) return true;
  return false;
}

static void run_block() {
  for (unsigned i = 0; i < thread_count; ++i) threads[i].state = State::unstarted;
  alive = thread_count;
  at_barrier = votes = 0;
  begin_copies();
  begin_meetings();
  begin_multiplies();
  while (alive) {
    const bool moved = pass();
    if (alive && at_barrier == alive) {
      release_barrier();
    } else if (!moved && !release_warps() && !land_one(true)) {
      give_up_stuck(waits_forever() ? "a wait that never ends"
                    : at_barrier ? "divergent barrier" : "divergent warp operation");
    }
  }
  check_nothing_in_flight();
}

static void run_grid() {
  const BlockOrder order(1ull * gridDim.x * gridDim.y * gridDim.z);
  open_dynamic_shared();
  check_static_size();  // of variables outside all functions; the others register later
  for (unsigned long long turn = 0; turn < order.count; ++turn) {
    const unsigned long long i = order.at(turn);
    blockIdx = {static_cast<unsigned>(i % gridDim.x),
                static_cast<unsigned>(i / gridDim.x % gridDim.y),
                static_cast<unsigned>(i / gridDim.x / gridDim.y)};
    spoil_shared();
    run_block();
    check_shared();
  }
}

}  // namespace cuda_on_host
