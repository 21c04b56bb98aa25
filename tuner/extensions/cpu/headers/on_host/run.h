// One launch: its limits, its arguments, and what it leaves behind.
#pragma once

namespace cuda_on_host {

static int check_launch(const Launch* launch) {
  const unsigned* const sizes = kernel.sizes;
  const unsigned wanted = kernel.count;
  const unsigned(&b)[3] = launch->block;
  const unsigned(&g)[3] = launch->grid;
  if (launch->arguments != wanted)
    return refuse("the kernel has %u parameters, but %u arguments are declared", wanted,
                  launch->arguments, 0);
  for (unsigned i = 0; i < wanted; ++i) {
    if (sizes[i] != launch->sizes[i])
      return refuse("parameter %u of the kernel has %u bytes, but the declared argument has %u",
                    i + 1, sizes[i], launch->sizes[i]);
  }
  if (1ull * b[0] * b[1] * b[2] > kMaxThreads || 1ull * b[0] * b[1] * b[2] == 0)
    return refuse("a block of (%u,%u,%u) threads: 1 to 1024 are possible", b[0], b[1], b[2]);
  if (g[0] == 0 || g[1] == 0 || g[2] == 0)
    return refuse("a grid of (%u,%u,%u) blocks", g[0], g[1], g[2]);
  if (launch->shared_bytes > kMaxSharedBytes)
    return refuse("%u bytes of dynamic shared memory: at most %u are possible",
                  launch->shared_bytes, kMaxSharedBytes, 0);
  const unsigned(&c)[3] = launch->cluster;
  if (c[0] == 0 || c[1] == 0 || c[2] == 0 || 1ull * c[0] * c[1] * c[2] > kMaxBlocks)
    return refuse("a cluster of (%u,%u,%u) blocks: 1 to 8 are possible", c[0], c[1], c[2]);
  if (g[0] % c[0] || g[1] % c[1] || g[2] % c[2])
    return refuse("the grid is no multiple of the cluster of (%u,%u,%u) blocks", c[0], c[1], c[2]);
  cluster_dim = dim3(c[0], c[1], c[2]);
  cluster_blocks = c[0] * c[1] * c[2];
  const unsigned stacks_wanted = cluster_blocks * b[0] * b[1] * b[2];
  if (!prepare_stacks(stacks_wanted) || !prepare_areas())
    return refuse("no memory for the stacks of %u threads", stacks_wanted, 0, 0);
  return kDone;
}

static void watch_guards(bool closed) {
#ifdef ON_HOST_ADDRESS
  for (unsigned i = 0; i < active->guard_count; ++i) {
    const Range& guard = active->guards[i];
    if (closed) {
      __asan_poison_memory_region(guard.start, guard.bytes);
    } else {
      __asan_unpoison_memory_region(guard.start, guard.bytes);
    }
  }
  __asan_set_error_report_callback(closed ? on_address_error : nullptr);
#else
  (void)closed;
#endif
}

__attribute__((noinline, noclone)) static bool run_to_the_end() {
  if (__builtin_setjmp(abandon)) return false;
  run_grid();
  return true;
}

static int run(const Launch* launch, const Kernel* launched) {
  const unsigned(&b)[3] = launch->block;
  active = launch;
  kernel = *launched;
  if (const int refused = check_launch(launch)) return refused;
  thread_count = b[0] * b[1] * b[2];
  gridDim = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
  blockDim = dim3(b[0], b[1], b[2]);
  for (unsigned rank = 0; rank < cluster_blocks; ++rank)
    for (unsigned i = 0; i < thread_count; ++i)
      all_threads[rank][i].index = {i % b[0], i / b[0] % b[1], i / b[0] / b[1]};
  watch_guards(true);
  bool ended;
  {
    Signals signals(launch->timeout_s);
    fibers_left = true;
    ended = run_to_the_end();
    fibers_left = !ended;
  }
#ifdef ON_HOST_ADDRESS
  if (!ended && main_bottom) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  watch_guards(false);
  return ended ? kDone : abandon_code;
}

}  // namespace cuda_on_host

// The one function of a library that the worker calls.
extern "C" __attribute__((visibility("default"))) int cuda_on_host_run(
    const cuda_on_host::Launch* launch, const cuda_on_host::Kernel* launched) {
  return cuda_on_host::run(launch, launched);
}
