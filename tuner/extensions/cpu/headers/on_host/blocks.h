// Runs a grid: clusters in turn (a block without one is its own), the blocks of a cluster together.
#pragma once

namespace cuda_on_host {

static PerBlock<unsigned> at_barrier, votes;
static unsigned cluster_phase, cluster_arrivals;

void wait_at_barrier(const char* name, int predicate, int line) {
  Thread& thread = threads[current];
  thread.state = State::at_barrier;
  thread.waits = name;
  thread.line = line;
  *votes += predicate != 0;
  ++*at_barrier;
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
    if (threads[i].state == State::at_barrier) {
      threads[i].state = State::ready;
      threads[i].votes = *votes;
      threads[i].voters = *at_barrier;
    }
  *at_barrier = *votes = 0;
}

void arrive_at_cluster(const char* name, bool whole_warps, int line) {
  if (whole_warps) in_warp(name, finish_sync, ~Lanes(0), 0, 0, line);
  Thread& thread = threads[current];
  if (thread.arrived) fault(line, "%s, and no cluster_wait since this thread last arrived", name);
  thread.arrived = cluster_phase + 1;
  cluster_used = true;
  ++cluster_arrivals;
}

void wait_for_cluster(const char* name, int line) {
  Thread& thread = threads[current];
  if (!thread.arrived) fault(line, "%s, and this thread has not arrived", name);
  wait_until(name, [](const Thread& one) { return one.arrived != cluster_phase + 1; }, line);
  thread.arrived = 0;
}

// As PTX has it, "all non-exited threads of the cluster" meet.
static void leave_cluster(Thread& thread) {
  if (thread.arrived == cluster_phase + 1) --cluster_arrivals;
}

static bool release_cluster() {
  unsigned threads_left = 0;
  for (unsigned rank = 0; rank < cluster_blocks; ++rank) threads_left += alive.of[rank];
  if (!cluster_arrivals || cluster_arrivals < threads_left) return false;
  ++cluster_phase;
  cluster_arrivals = 0;
  return true;
}

// Give every thread that can go on one turn; say whether there was one. In a random order warps
// also miss turns, so that some run ahead of others.
static bool pass() {
  const bool random = random_order();
  if (random) draw_turns();
  bool moved = false, missed = false;
  land_one(failed_tests > thread_count);
  for (unsigned turn = 0; turn < thread_count; ++turn) {
    if (random && turn % kWarp == 0) missed = moved && random_below(4) == 0;
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

static void turn_to(unsigned rank) {
  here = block_rank = rank;
  threads = all_threads[rank];
  blockIdx = block_at(rank);
}

static void begin_block() {
  for (unsigned i = 0; i < thread_count; ++i) {
    threads[i].state = State::unstarted;
    threads[i].arrived = 0;
  }
  *alive = thread_count;
  *at_barrier = *votes = 0;
  *life = Life::unstarted;
  begin_copies();
  begin_meetings();
  multiplies->clear();
}

// Give the block a turn; say whether it got on.
static bool advance() {
  const bool moved = pass();
  if (*alive && *at_barrier == *alive) {
    release_barrier();
  } else if (!moved) {
    return release_warps();
  } else if (cluster_blocks > 1 && loaded == here) {
    check_shared();
  }
  return true;
}

// Nothing moves any more: let a copy land.
static bool land_for_one(const unsigned char (&order)[kMaxBlocks]) {
  for (unsigned i = 0; i < cluster_blocks; ++i) {
    turn_to(order[i]);
    if (*alive && land_one(true)) return true;
  }
  return false;
}

// Whatever waits for a cluster or at a barrier may wait for one that waits for something else.
static const char* why_stuck() {
  bool waits = false, for_cluster = false, at_barriers = false;
  for (unsigned rank = 0; rank < cluster_blocks; ++rank) {
    for (unsigned i = 0; i < thread_count; ++i) {
      const Thread& one = all_threads[rank][i];
      const bool cluster = one.arrived && one.state == State::waiting;
      for_cluster |= cluster;
      waits |= one.state == State::waiting && !cluster;
    }
    at_barriers |= at_barrier.of[rank] != 0;
  }
  return waits         ? "a wait that never ends"
         : for_cluster ? "a cluster's barrier that not all threads reach"
         : at_barriers ? "divergent barrier"
                       : "divergent warp operation";
}

static void run_cluster() {
  unsigned char order[kMaxBlocks];
  for (unsigned rank = 0; rank < cluster_blocks; ++rank) {
    order[rank] = static_cast<unsigned char>(active->order == 1 ? cluster_blocks - 1 - rank : rank);
    turn_to(rank);
    begin_block();
  }
  cluster_arrivals = 0;
  for (unsigned left = cluster_blocks; left;) {
    bool moved = false;
    if (cluster_blocks > 1 && random_order()) shuffle_range(order, cluster_blocks);
    for (unsigned i = 0; i < cluster_blocks; ++i) {
      turn_to(order[i]);
      if (!*alive || (moved && cluster_blocks > 1 && random_order() && random_below(4) == 0)) continue;
      moved |= advance();
      if (*alive) continue;
      check_nothing_in_flight();
      check_shared();
      live(Life::ended);
      --left;
    }
    if (!release_cluster() && !moved && !land_for_one(order)) give_up_stuck(why_stuck());
  }
}

static void run_grid() {
  const dim3& size = cluster_dim;
  const unsigned wide = gridDim.x / size.x, high = gridDim.y / size.y;
  const BlockOrder order(1ull * wide * high * (gridDim.z / size.z));
  cluster_used = false;
  open_dynamic_shared();
  check_static_size();  // of variables outside all functions; the others register later
  for (unsigned long long turn = 0; turn < order.count; ++turn) {
    const unsigned long long i = order.at(turn);
    cluster_first = {static_cast<unsigned>(i % wide) * size.x, static_cast<unsigned>(i / wide % high) * size.y,
                     static_cast<unsigned>(i / wide / high) * size.z};
    spoil_shared();
    run_cluster();
  }
  if (cluster_blocks == 1 || cluster_used) return;
  say("launched in clusters of %u, and no code for clusters ran: what `__CUDA_ON_HOST__` puts in its place can't be"
      " verified", cluster_blocks);
  give_up(kRefused);
}

}  // namespace cuda_on_host
