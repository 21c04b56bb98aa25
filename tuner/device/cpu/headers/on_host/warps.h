// Operations among the lanes of a warp: every lane of the mask posts its value and waits.
//
// The last lane to arrive computes the result of each lane, so that a fast lane's next operation
// can't overwrite what a slow one still has to read. Lanes that have ended count as arrived.
#pragma once

namespace cuda_on_host {

// Whether all lanes of the mask wait at the same operation or have ended; `present` are those
// that wait.
static bool complete(const Thread* lanes, const Thread& one, unsigned& present) {
  present = 0;
  const unsigned count = lanes_in(lanes);
  for (unsigned i = 0; i < count; ++i) {
    const Thread& lane = lanes[i];
    if (!(one.mask >> i & 1) || lane.state == State::exited) continue;
    if (lane.state != State::in_warp || lane.waits != one.waits || lane.mask != one.mask)
      return false;
    present |= 1u << i;
  }
  return true;
}

static void release_lanes(Thread* lanes, unsigned present, Finish finish) {
  finish(lanes, present);
  for (unsigned i = 0; i < 32; ++i)
    if (present >> i & 1) lanes[i].state = State::ready;
}

// Threads of a warp that wait for lanes which have ended meanwhile go on.
static bool release_warps() {
  bool released = false;
  for (unsigned i = 0; i < thread_count; ++i) {
    unsigned present;
    if (threads[i].state != State::in_warp || !complete(lanes_of(i), threads[i], present)) continue;
    release_lanes(lanes_of(i), present, threads[i].finish);
    released = true;
  }
  return released;
}

unsigned long long in_warp(const char* name, Finish finish, unsigned mask,
                           unsigned long long value, unsigned source, int line) {
  const unsigned me = current;
  Thread& thread = threads[me];
  thread.waits = name;
  thread.line = line;
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  thread.state = State::in_warp;
  thread.finish = finish;
  if (!(mask >> lane_of(me) & 1)) {
    say("%s calls %s (line %d) with the mask 0x%08x, which its lane is not in", thread_name(), name,
        line, mask);
    give_up(kStuck);
  }
  unsigned present;
  if (complete(lanes_of(me), thread, present)) {
    release_lanes(lanes_of(me), present, finish);
  } else {
    suspend();
  }
  return thread.result;
}

}  // namespace cuda_on_host
