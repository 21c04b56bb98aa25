"""Honest kernels of unusual form, each of which has to pass."""

from __future__ import annotations

from dataclasses import dataclass

from operators import (
    ACCUMULATE,
    COLUMN_ENERGY,
    ENERGY,
    HISTOGRAM,
    LOGARITHM,
    QUANTIZE,
    SCALE,
    STAGED_ENERGY,
    TO_FP8,
    Operator,
    in_accumulate,
    in_scale,
    in_staged_energy,
    launch,
)

from tuner.model.kernel import Launch


@dataclass(frozen=True, slots=True)
class Unusual:
    """One honest kernel and how it is launched."""

    name: str
    operator: Operator
    source: str
    launches: tuple[Launch, ...] = ()

    @property
    def launched(self) -> tuple[Launch, ...]:
        """Its launches: the operator's own where it does not say otherwise."""
        return self.launches or self.operator.launches


_FLOAT_ATOMICS = """\
#include <cuda_fp16.h>

extern "C" __global__ void clear(float* y, const __half* x, int T, int D) {
  if (threadIdx.x < D) y[threadIdx.x] = 0.0f;
}

extern "C" __global__ void add(float* y, const __half* x, int T, int D) {
  for (int row = blockIdx.x; row < T; row += gridDim.x) {
    const float value = __half2float(x[row * D + threadIdx.x]);
    atomicAdd(&y[threadIdx.x], value * value);
  }
}
"""
_INTEGER_ATOMICS = """\
extern "C" __global__ void clear(int* y, const int* x, int T) {
  y[threadIdx.x] = 0;
}

extern "C" __global__ void count(int* y, const int* x, int T) {
  __shared__ int mine[64];
  mine[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < T; i += gridDim.x * blockDim.x)
    atomicAdd_block(&mine[x[i]], 1);
  __syncthreads();
  atomicAdd(&y[threadIdx.x], mine[threadIdx.x]);
}
"""
_QUANTIZE = """\
#include <cuda_fp16.h>

extern "C" __global__ void run(signed char* y, const __half* x, int T) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= T) return;
  // One multiplication instead of the division: now and then the neighbouring code.
  const float scaled = __half2float(x[i]) * (1.0f / 0.07f);
  y[i] = static_cast<signed char>(lrintf(fminf(fmaxf(scaled, -127.0f), 127.0f)));
}
"""
_TO_FP8 = """\
#include <cuda_fp8.h>

extern "C" __global__ void run(__nv_fp8_storage_t* y, const float* x, int T) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < T) y[i] = __nv_cvt_float_to_fp8(100.0f * x[i], __NV_SATFINITE, __NV_E4M3);
}
"""
_LOGARITHM = """\
extern "C" __global__ void run(float* y, const float* x, int T) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < T) y[i] = logf(x[i]);
}
"""
_THREE_DIMENSIONS = """\
extern "C" __global__ void run(float* y, const float* x, int T) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
  if (i < T) y[i] = 2.0f * x[i];
}
"""
_DYNAMIC_SHARED = """\
#include <cuda_fp16.h>

extern "C" __global__ void run(float* y, const __half* x, int T, int D) {
  extern __shared__ float sums[];
  const int row = blockIdx.x, thread = threadIdx.x;
  float sum = 0.0f;
  for (int i = thread; i < D; i += blockDim.x) {
    const float value = __half2float(x[row * D + i]);
    sum += value * value;
  }
  sums[thread] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    __syncthreads();
  }
  if (thread == 0) y[row] = sums[0];
}
"""
_PARTIAL_MASKS = """\
#include <cuda_fp16.h>

// Twenty lanes sum a row; the warp's other twelve have no part in it.
extern "C" __global__ void run(float* y, const __half* x, int T, int D) {
  const int row = blockIdx.x, lane = threadIdx.x;
  const unsigned mask = __ballot_sync(~0u, lane < 20);
  if (lane >= 20) return;
  float sum = 0.0f;
  for (int i = lane; i < D; i += 20) {
    const float value = __half2float(x[row * D + i]);
    sum += value * value;
  }
  float total = 0.0f;
  for (int source = 0; source < 20; ++source) total += __shfl_sync(mask, sum, source);
  if (lane == 0) y[row] = total;
}
"""
_LAST_BLOCK = """\
#include <cuda_fp16.h>

constexpr int kParts = 8;

extern "C" __global__ void clear(float* y, float* partial, const __half* x, int T, int D) {
  if (threadIdx.x < T) reinterpret_cast<unsigned*>(y)[threadIdx.x] = 0;
}

// A block for every part of a row; whoever finds the others done adds them up, in one order.
extern "C" __global__ void run(float* y, float* partial, const __half* x, int T, int D) {
  const int row = blockIdx.x / kParts, part = blockIdx.x % kParts;
  if (threadIdx.x != 0) return;
  float sum = 0.0f;
  for (int i = part; i < D; i += kParts) {
    const float value = __half2float(x[row * D + i]);
    sum += value * value;
  }
  partial[blockIdx.x] = sum;
  __threadfence();
  if (atomicAdd(&reinterpret_cast<unsigned*>(y)[row], 1u) != kParts - 1) return;
  __threadfence();
  float total = 0.0f;
  for (int i = 0; i < kParts; ++i) total += __ldcg(&partial[row * kParts + i]);
  y[row] = total;
}
"""
_QUEUE = """\
#include <cuda_fp16.h>

extern "C" __global__ void clear(float* y, float* partial, const __half* x, int T, int D) {
  if (threadIdx.x == 0) reinterpret_cast<int*>(partial)[0] = 0;
}

// Persistent blocks that take the next row from a queue in the scratch.
extern "C" __global__ void run(float* y, float* partial, const __half* x, int T, int D) {
  __shared__ int next;
  for (;;) {
    if (threadIdx.x == 0) next = atomicAdd(reinterpret_cast<int*>(partial), 1);
    __syncthreads();
    const int row = next;
    __syncthreads();
    if (row >= T) return;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += 32) {
      const float value = __half2float(x[row * D + i]);
      sum += value * value;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x == 0) y[row] = sum;
  }
}
"""
_PRODUCER = """\
extern "C" __global__ void run(float* y, const float* x, int T) {
  __shared__ float staged[2][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = blockIdx.x * 256;
  // One warp fetches ahead of the other; the rest of the block only comes to the barriers.
  for (int step = 0; step <= 8; ++step) {
    const int ahead = first + step * 32 + lane, here = ahead - 32;
    if (warp == 0 && step < 8 && ahead < T) staged[step % 2][lane] = x[ahead];
    if (warp == 1 && step > 0 && here < T) y[here] = 2.0f * staged[(step - 1) % 2][lane];
    __syncthreads();
  }
}
"""
_SPIN_LOCK = """\
#include <cuda_fp16.h>

__device__ int lock;

extern "C" __global__ void clear(float* y, const __half* x, int T, int D) {
  if (threadIdx.x < D) y[threadIdx.x] = 0.0f;
}

// One block at a time adds its rows.
extern "C" __global__ void add(float* y, const __half* x, int T, int D) {
  if (threadIdx.x == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) __nanosleep(100);
    __threadfence();
  }
  __syncthreads();
  float sum = __ldcg(&y[threadIdx.x]);
  for (int row = blockIdx.x; row < T; row += gridDim.x) {
    const float value = __half2float(x[row * D + threadIdx.x]);
    sum += value * value;
  }
  __stcg(&y[threadIdx.x], sum);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(&lock, 0);
}
"""

_COLUMNS = (launch(1, 64, kernel="clear"), launch(30, 64, kernel="add"))
UNUSUAL = (
    Unusual("adds floats atomically and says so", COLUMN_ENERGY, _FLOAT_ATOMICS, _COLUMNS),
    Unusual("takes turns by a lock", COLUMN_ENERGY, _SPIN_LOCK, _COLUMNS),
    Unusual(
        "adds integers atomically, in shared memory too",
        HISTOGRAM,
        _INTEGER_ATOMICS,
        (launch(1, 64, kernel="clear"), launch(5, 64, kernel="count")),
    ),
    Unusual("works in place", ACCUMULATE, in_accumulate()),
    Unusual("is two launches with scratch between them", STAGED_ENERGY, in_staged_energy()),
    Unusual(
        "lets the last block of a row finish it",
        STAGED_ENERGY,
        _LAST_BLOCK,
        (launch(1, 32, kernel="clear"), launch(24 * 8, 32)),
    ),
    Unusual(
        "takes its rows from a queue",
        STAGED_ENERGY,
        _QUEUE,
        (launch(1, 32, kernel="clear"), launch(3, 32)),
    ),
    Unusual("writes codes of eight bits that may differ by one", QUANTIZE, _QUANTIZE),
    Unusual("saturates eight-bit floats", TO_FP8, _TO_FP8),
    Unusual("gives NaN and infinity where the operator does", LOGARITHM, _LOGARITHM),
    Unusual(
        "ends most of its threads early",
        SCALE,
        in_scale(before="if (thread >= T) return;"),
        (launch(6, 512),),
    ),
    Unusual("loops over its grid with one block", SCALE, in_scale(), (launch(1, 96),)),
    Unusual(
        "has three dimensions",
        SCALE,
        _THREE_DIMENSIONS,
        (Launch("run", (2, 2, 3), (4, 5, 7)),),
    ),
    Unusual("works with one warp for another", SCALE, _PRODUCER, (launch(4, 96),)),
    Unusual(
        "reduces in dynamic shared memory",
        ENERGY,
        _DYNAMIC_SHARED,
        (launch(24, 64, shared_bytes=256),),
    ),
    Unusual("shuffles among a part of a warp", ENERGY, _PARTIAL_MASKS),
)
