// The order in which blocks, and at every pass the warps of a block and their threads, take turns.
#pragma once

namespace cuda_on_host {

static unsigned long long random_state;
static unsigned short turns[kMaxThreads];

static bool random_order() { return active->order > 1; }

static unsigned random_below(unsigned bound) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<unsigned>((random_state >> 32) * bound >> 32);
}

template <class T>
static void shuffle_range(T* items, unsigned count) {
  for (unsigned i = count; i > 1; --i) std::swap(items[i - 1], items[random_below(i)]);
}

static void draw_turns() {
  unsigned char warps[kMaxThreads / kWarp];
  const unsigned warp_count = (thread_count + kWarp - 1) / kWarp;
  for (unsigned i = 0; i < warp_count; ++i) warps[i] = static_cast<unsigned char>(i);
  shuffle_range(warps, warp_count);
  unsigned short* next = turns;
  for (unsigned i = 0; i < warp_count; ++i) {
    unsigned short* first = next;
    const unsigned end = std::min(thread_count, (warps[i] + 1u) * kWarp);
    for (unsigned k = warps[i] * kWarp; k < end; ++k) *next++ = static_cast<unsigned short>(k);
    shuffle_range(first, static_cast<unsigned>(next - first));
  }
}

static unsigned thread_at(unsigned turn) {
  if (active->order == 0) return turn;
  return active->order == 1 ? thread_count - 1 - turn : turns[turn];
}

// A permutation without a table: a step that has no factor in common with the number of blocks.
struct BlockOrder {
  unsigned long long count, step, first;

  explicit BlockOrder(unsigned long long blocks) : count(blocks), step(1), first(0) {
    if (!random_order()) return;
    random_state = active->order * 0x9E3779B97F4A7C15ull;
    const unsigned bound = static_cast<unsigned>(std::min(blocks, 0xFFFFFFFFull));
    first = random_below(bound);
    step = 1 + random_below(bound);
    while (std::__gcd(step, blocks) != 1 || (has_others() && is_plain())) ++step;
  }
  // Ascending and descending, wherever they begin, have checks of their own.
  bool is_plain() const { return step % count == 1 || step % count == count - 1; }
  // Of 1, 2, 3, 4 and 6 blocks no other step goes through all.
  bool has_others() const { return count == 5 || count > 6; }
  unsigned long long at(unsigned long long turn) const {
    if (active->order == 1) return count - 1 - turn;
    return static_cast<unsigned long long>(
        (static_cast<unsigned __int128>(turn) * step + first) % count);
  }
};

}  // namespace cuda_on_host
