// Copies of a thread to shared memory, as `cp.async` makes them; `cuda::pipeline` is not here.
#pragma once

#include "on_host/asynchronous.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0, ON_HOST_LINE) {
  const unsigned taken = static_cast<unsigned>(bytes - zeros);
  cuda_on_host::watch_source(from, taken);
  cuda_on_host::copy_of_thread(cuda_on_host::window_of(to, line), from, static_cast<unsigned>(bytes), taken, line);
}
inline void __pipeline_commit() { cuda_on_host::commit_copies(); }
inline void __pipeline_wait_prior(unsigned pending) { cuda_on_host::wait_for_copies(pending); }
