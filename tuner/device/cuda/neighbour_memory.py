"""What neighbours of an operator share in one process: weights, cuBLAS, and kernels of our own."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from cuda.bindings import driver

from tuner.device.cuda.driver import (
    POSITION,
    PTX,
    PTX_OF_HOPPER,
    TURNS,
    PtxKernel,
    allocate,
    call,
    compare_bytes,
    read_flag,
)
from tuner.model.errors import WorkerError

# cublas_api.h and library_types.h of CUDA 12 and 13.
_TRANSPOSED, _AS_IT_IS = 1, 0
_BF16 = 14
_COMPUTE_FLOAT32 = 68
_DEFAULT_ALGORITHM = -1
# What cuBLAS asks for on Hopper; in a capture it could not allocate its own (cuBLAS, 2.1.7).
_WORKSPACE_BYTES = 32 << 20


class CublasError(WorkerError):
    """Report that cuBLAS is missing, or refused a call."""


class Cublas:
    """A handle on one stream; its calls may be captured."""

    def __init__(self, stream: Any) -> None:
        self._library = _library()
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(int(stream)))
        self._workspace = ctypes.c_void_p(allocate(_WORKSPACE_BYTES))
        size_bytes = ctypes.c_size_t(_WORKSPACE_BYTES)
        self._call("cublasSetWorkspace_v2", self._handle, self._workspace, size_bytes)

    def product(
        self,
        sizes: tuple[int, ...],
        addresses: tuple[int, int, int],
    ) -> None:
        """Enqueue C = A B^T in bf16, all by rows: A (M x K), B (N x K), C (M x N).

        `sizes` are M, N and K, `addresses` those of A, B and C.
        """
        m, n, k = sizes
        a, b, c = map(ctypes.c_void_p, addresses)
        # By columns, as cuBLAS has them, C is N x M: B A^T with B transposed.
        scale = [ctypes.byref(ctypes.c_float(factor)) for factor in (1.0, 0.0)]
        self._call(
            "cublasGemmEx",
            *(self._handle, _TRANSPOSED, _AS_IT_IS, n, m, k, scale[0]),
            *(b, _BF16, k, a, _BF16, k, scale[1], c, _BF16, n),
            *(_COMPUTE_FLOAT32, _DEFAULT_ALGORITHM),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CublasError(f"{name} failed with status {status}")


def _library() -> ctypes.CDLL:
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (DynamicLibNotFoundError, OSError) as error:
        raise CublasError(f"cuBLAS is not installed: {error}") from error


# What streams by stands for weights: so much that nothing of it is in the L2 when it comes again.
POOL_BYTES = 1 << 30
_TILE_BYTES = 16 << 20
_BLOCKS_PER_MULTIPROCESSOR = 8
ARRAY_FIRST, WRITE, WAIT, TRIGGER = 1, 2, 4, 8
# Rows of an input that a thread plants side by side: 16 bytes.
ROWS = 8
_WRITTEN_BACK = "  @%p3 st.global.v4.u32 [%d5], {%r8, %r9, %r10, %r11};\n"


def _reading(name: str, address: str, size_bytes: str, after: str, then: str = "") -> str:
    """Write a loop over the memory that two parameters name; it goes on at the label `after`."""
    return f"""\
  mov.u64 %d6, %d3;
  ld.param.u64 %d1, [{address}];
  ld.param.u64 %d2, [{size_bytes}];
{name}:
  setp.ge.u64 %p1, %d6, %d2;
  @%p1 bra {after};
  add.u64 %d5, %d1, %d6;
  ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%d5];
{then}  xor.b32 %r8, %r8, %r9;
  xor.b32 %r10, %r10, %r11;
  xor.b32 %r7, %r7, %r8;
  xor.b32 %r7, %r7, %r10;
  add.u64 %d6, %d6, %d4;
  bra {name};
"""


# Reads an array, and writes the same bits back where it stands for a producer; reads what stands
# for weights, and at last what a consumer without an operator will find in the L2.
_STAND_IN = f"""{PTX_OF_HOPPER}
.visible .entry stand_in(
  .param .u64 array, .param .u64 array_bytes, .param .u64 weights, .param .u64 weight_bytes,
  .param .u64 hot, .param .u64 hot_bytes, .param .u64 sink, .param .u32 mode)
{{
  .reg .pred %p<8>;
  .reg .b32 %r<20>;
  .reg .b64 %d<16>;
  ld.param.u32 %r15, [mode];
  and.b32 %r16, %r15, {TRIGGER};
  setp.eq.u32 %p1, %r16, 0;
  @%p1 bra triggered;
  griddepcontrol.launch_dependents;
triggered:
  and.b32 %r16, %r15, {WAIT};
  setp.eq.u32 %p1, %r16, 0;
  @%p1 bra waited;
  griddepcontrol.wait;
waited:
{TURNS}  mov.u32 %r7, 0;
  and.b32 %r16, %r15, {ARRAY_FIRST};
  setp.ne.u32 %p2, %r16, 0;
  and.b32 %r17, %r15, {WRITE};
  setp.ne.u32 %p3, %r17, 0;
  @%p2 bra touch;
stream:
{_reading("streaming", "weights", "weight_bytes", "streamed")}streamed:
  @%p2 bra heat;
touch:
{_reading("touching", "array", "array_bytes", "touched", _WRITTEN_BACK)}touched:
  @%p2 bra stream;
heat:
{_reading("heating", "hot", "hot_bytes", "done")}done:
  setp.ne.u32 %p4, %r7, 0x5ca1ab1e;
  @%p4 ret;
  ld.param.u64 %d1, [sink];
  st.global.u32 [%d1], %r7;
  ret;
}}
"""
# Writes an input's rows into the first columns of the weights that a product will make it of.
_GATHER = "".join(
    f"""  mov.u16 %h{row + 1}, 0;
  setp.ge.u32 %p2, %r16, %r8;
  @!%p2 ld.global.u16 %h{row + 1}, [%d6];
  add.u32 %r16, %r16, 1;
  add.u64 %d6, %d6, %d7;
"""
    for row in range(ROWS)
)
_PLANT = f"""{PTX}
.visible .entry plant(
  .param .u64 array, .param .u64 array_stride, .param .u64 weights, .param .u64 weight_stride,
  .param .u32 m, .param .u32 n, .param .u32 k, .param .u32 groups, .param .u32 total)
{{
  .reg .pred %p<3>;
  .reg .b16 %h<9>;
  .reg .b32 %r<24>;
  .reg .b64 %d<12>;
  ld.param.u64 %d1, [array];
  ld.param.u64 %d2, [array_stride];
  ld.param.u64 %d3, [weights];
  ld.param.u64 %d4, [weight_stride];
  ld.param.u32 %r8, [m];
  ld.param.u32 %r9, [n];
  ld.param.u32 %r10, [k];
  ld.param.u32 %r11, [groups];
  ld.param.u32 %r12, [total];
{POSITION}  mul.wide.u32 %d7, %r9, 2;
next:
  setp.ge.u32 %p1, %r5, %r12;
  @%p1 ret;
  rem.u32 %r13, %r5, %r9;
  div.u32 %r14, %r5, %r9;
  rem.u32 %r15, %r14, %r11;
  div.u32 %r14, %r14, %r11;
  shl.b32 %r16, %r15, 3;
  cvt.u64.u32 %d8, %r14;
  mad.lo.u64 %d5, %d8, %d4, %d3;
  mad.lo.u64 %d6, %d8, %d2, %d1;
  mad.lo.u32 %r17, %r13, %r10, %r16;
  mul.wide.u32 %d9, %r17, 2;
  add.u64 %d5, %d5, %d9;
  mad.lo.u32 %r17, %r16, %r9, %r13;
  mul.wide.u32 %d9, %r17, 2;
  add.u64 %d6, %d6, %d9;
{_GATHER}  mov.b32 %r18, {{%h1, %h2}};
  mov.b32 %r19, {{%h3, %h4}};
  mov.b32 %r20, {{%h5, %h6}};
  mov.b32 %r21, {{%h7, %h8}};
  st.global.v4.u32 [%d5], {{%r18, %r19, %r20, %r21}};
  add.u32 %r5, %r5, %r6;
  bra next;
}}
"""


class NeighbourMemory:
    """What neighbours of all workloads share in one process: weights, the kernels, cuBLAS.

    It grows with what is asked for, and is filled once: gigabytes take longer than a trial.
    """

    def __init__(self, stream: Any, multiprocessors: int) -> None:
        self.stream, self.blocks = stream, _BLOCKS_PER_MULTIPROCESSOR * multiprocessors
        self._flag = allocate(4)
        self.stand_in, self.planter = PtxKernel(_STAND_IN, "stand_in"), PtxKernel(_PLANT, "plant")
        self._held: dict[str, tuple[int, int]] = {}
        self._cublas: Cublas | None = None

    def of(self, purpose: str, size_bytes: int) -> int:
        """Return memory for a purpose, with numbers in it as weights have them."""
        base, held_bytes = self._held.get(purpose, (0, 0))
        if held_bytes >= size_bytes:
            return base
        if held_bytes:
            del self._held[purpose]
            call(driver.cuMemFree, base)
        base = allocate(size_bytes)
        self._held[purpose] = base, size_bytes
        filled = min(_TILE_BYTES, size_bytes)
        call(driver.cuMemcpyHtoD, base, _tile().ctypes.data, filled)
        while filled < size_bytes:
            count = min(filled, size_bytes - filled)
            call(driver.cuMemcpyDtoD, base + filled, base, count)
            filled += count
        return base

    def differ(self, first: int, second: int, size_bytes: int) -> bool:
        """Wait for the stream, and tell whether two ranges differ."""
        call(driver.cuMemsetD32Async, self._flag, 0, 1, self.stream)
        compare_bytes(self.stream, first, second, size_bytes, self._flag)
        call(driver.cuStreamSynchronize, self.stream)
        return read_flag(self._flag)

    def cublas(self) -> Cublas:
        """Return cuBLAS on the stream; raise `CublasError` where there is none."""
        self._cublas = self._cublas or Cublas(self.stream)
        return self._cublas


@cache
def _tile() -> np.ndarray[Any, np.dtype[np.uint16]]:
    numbers = np.random.default_rng(0).standard_normal(_TILE_BYTES // 2, dtype=np.float32)
    return ((numbers * np.float32(0.02)).view(np.uint32) >> 16).astype(np.uint16)
