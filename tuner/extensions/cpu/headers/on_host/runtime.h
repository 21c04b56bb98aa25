// The part of the runtime that is compiled once and linked to every kernel.
#pragma once

#include "asynchronous.h"
#include "fp8.h"

#include <algorithm>
#include <array>
#include <cfenv>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

#ifdef ON_HOST_ADDRESS
extern "C" {
void __asan_poison_memory_region(const volatile void*, size_t);
void __asan_unpoison_memory_region(const volatile void*, size_t);
void __asan_set_error_report_callback(void (*)(const char*));
int __asan_report_present();
void* __asan_get_report_address();
int __asan_get_report_access_type();
size_t __asan_get_report_access_size();
const char* __asan_get_report_description();
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
}
#endif

namespace cuda_on_host {
static Thread all_threads[kMaxBlocks][kMaxThreads];
Thread* threads = all_threads[0];
unsigned thread_count, current;
const Launch* active;
dim3 cluster_dim;
uint3 cluster_first;
unsigned cluster_blocks, block_rank;

// What each block of a cluster has of its own. `here` is the block that is looked at.
static unsigned here;
template <class T>
struct PerBlock {
  T of[kMaxBlocks];
  T& operator*() { return of[here]; }
  T* operator->() { return &of[here]; }
};
template <class T>
static T& mine(PerBlock<std::vector<T>>& of) {
  if (of->size() < thread_count) of->resize(thread_count);
  return (*of)[current];
}
}  // namespace cuda_on_host

#include "fibers.h"

#include "failures.h"

#include "order.h"

#include "shared_memory.h"

#include "warps.h"

#include "mbarriers.h"

#include "copies.h"

#include "matrices.h"

#include "blocks.h"

#include "signals.h"

#ifdef ON_HOST_ADDRESS
#include "address_reports.h"
#endif

#ifdef ON_HOST_UNDEFINED
#include "undefined_reports.h"
#endif

#include "rounding.h"

#include "run.h"
