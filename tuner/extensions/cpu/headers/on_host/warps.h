// Operations among the lanes of a warp: every lane of the mask posts its value and waits.
//
// The last lane to arrive computes the result of each lane, so that a fast lane's next operation
// can't overwrite what a slow one still has to read. Lanes that have ended count as arrived.
#pragma once

namespace cuda_on_host {

// Whether all lanes of the mask wait at the same operation or have ended; `present` are those
// that wait.
static bool complete(const Thread* lanes, const Thread& one, Lanes& present) {
  present = 0;
  const unsigned count = lanes_in(lanes);
  for (unsigned i = 0; i < count; ++i) {
    const Thread& lane = lanes[i];
    if (!(one.mask >> i & 1) || lane.state == State::exited) continue;
    if (lane.state != State::in_warp || lane.waits != one.waits || lane.mask != one.mask)
      return false;
    if (one.loose && lane.line != one.line) return false;
    present |= Lanes(1) << i;
  }
  return true;
}

static void release_lanes(Thread* lanes, Lanes present, Finish finish) {
  finish(lanes, present);
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(present >> i & 1)) continue;
    lanes[i].state = State::ready;
    lanes[i].present = present;
  }
}

// Where nothing else can go on, lanes that took one branch have the others' absence for granted,
// which only operations without a mask may. Of several branches the first in the source goes on,
// as a loop's lanes do before those that have left it.
static bool release_branch() {
  const Thread* first = nullptr;
  unsigned at = 0;
  for (unsigned i = 0; i < thread_count; ++i) {
    const Thread& one = threads[i];
    if (one.state != State::in_warp || !one.loose || (first && one.line >= first->line)) continue;
    first = &one;
    at = i;
  }
  if (!first) return false;
  Thread* const lanes = lanes_of(at);
  Lanes present = 0;
  for (unsigned i = 0; i < lanes_in(lanes); ++i)
    if (lanes[i].state == State::in_warp && lanes[i].waits == first->waits && lanes[i].line == first->line)
      present |= Lanes(1) << i;
  release_lanes(lanes, present, first->finish);
  return true;
}

// Threads of a warp that wait for lanes which have ended meanwhile go on.
static bool release_warps() {
  bool released = false;
  for (unsigned i = 0; i < thread_count; ++i) {
    Lanes present;
    if (threads[i].state != State::in_warp || !complete(lanes_of(i), threads[i], present)) continue;
    release_lanes(lanes_of(i), present, threads[i].finish);
    released = true;
  }
  return released || release_branch();
}

unsigned long long in_warp(const char* name, Finish finish, Lanes mask, unsigned long long value,
                           unsigned source, int line, bool loose) {
  const unsigned me = current;
  Thread& thread = threads[me];
  thread.waits = name;
  thread.line = line;
  thread.mask = mask;
  thread.loose = loose;
  thread.value = value;
  thread.source = source;
  thread.state = State::in_warp;
  thread.finish = finish;
  if (!(mask >> lane_of(me) & 1)) {
    say("%s calls %s (line %d) with the mask 0x%0*llx, which its lane is not in", thread_name(), name,
        line, kWarp / 4, static_cast<unsigned long long>(mask));
    give_up(kStuck);
  }
  Lanes present;
  if (complete(lanes_of(me), thread, present)) {
    release_lanes(lanes_of(me), present, finish);
  } else {
    suspend();
  }
  return thread.result;
}

}  // namespace cuda_on_host
