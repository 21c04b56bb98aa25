// CUDA C++ for a C++17 compiler: what a kernel needs to run on the CPU, one fiber per thread.
//
// The kernel's blocks run one after another, those of a cluster together. `__shared__`, `__noinline__` and `asm` are handled in
// the preprocessed source, by the compile step: they can't be written as macros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
// The special functions of C++17 make three quarters of <cmath>, and no GPU has them.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cmath>
// CUDA has them in the global namespace too, whatever a kernel includes.
using std::isfinite;
using std::isinf;
using std::isnan;
using std::isnormal;
using std::signbit;

// NVRTC has it: what a source keeps from NVRTC, its host code, is no use here either.
#define __CUDACC_RTC__ 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __inline_hint__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __block_size__(...)
#define __maxnreg__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_assume(condition) ((void)0)
#define __assume(condition) ((void)0)
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")

extern "C" int printf(const char*, ...);

#include "on_host/vector_types.h"

#include "on_host/launch.h"

#include "on_host/scheduler.h"

#include "on_host/warp.h"

#include "on_host/memory.h"

#include "on_host/arithmetic.h"

#include "on_host/bits.h"
