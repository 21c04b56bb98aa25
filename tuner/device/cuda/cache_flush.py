"""Take away what an earlier kernel left behind: its lines in the L2, its shared memory."""

from __future__ import annotations

import ctypes
import secrets
from typing import Any

from cuda.bindings import driver

from tuner.device.cuda.driver import TURNS, PtxKernel, allocate, call
from tuner.device.layout import POISONS

_BLOCKS_PER_MULTIPROCESSOR = 8
# Reads and keeps nothing: lines that were only read cost the kernel that evicts them no writing
# back. The memory holds zeros, so that the store, which keeps the reads alive, never happens.
_READ_ALL = f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry read_all(.param .u64 address, .param .u64 size_bytes)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<12>;
  .reg .b64 %d<6>;
  ld.param.u64 %d1, [address];
  ld.param.u64 %d2, [size_bytes];
  cvta.to.global.u64 %d1, %d1;
{TURNS}  mov.u32 %r7, 0;
more:
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 bra done;
  add.u64 %d5, %d1, %d3;
  ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%d5];
  or.b32 %r8, %r8, %r9;
  or.b32 %r10, %r10, %r11;
  or.b32 %r7, %r7, %r8;
  or.b32 %r7, %r7, %r10;
  add.u64 %d3, %d3, %d4;
  bra more;
done:
  setp.eq.u32 %p2, %r7, 0;
  @%p2 ret;
  st.global.u32 [%d1], %r7;
  ret;
}}
"""
_FILL_SHARED = """
.version 7.0
.target sm_70
.address_size 64
.extern .shared .align 16 .b8 pool[];
.visible .entry fill_shared(.param .u32 size_bytes, .param .u32 word)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  ld.param.u32 %r1, [size_bytes];
  ld.param.u32 %r2, [word];
  mov.u32 %r3, %tid.x;
  shl.b32 %r3, %r3, 2;
  mov.u32 %r4, %ntid.x;
  shl.b32 %r4, %r4, 2;
  mov.u32 %r5, pool;
next:
  setp.ge.u32 %p1, %r3, %r1;
  @%p1 ret;
  add.u32 %r6, %r5, %r3;
  st.shared.u32 [%r6], %r2;
  add.u32 %r3, %r3, %r4;
  bra next;
}
"""


class Scrub:
    """Zeros in the GPU's memory that are read between two replays, in place of what was there."""

    def __init__(self, size_bytes: int, multiprocessors: int) -> None:
        base = allocate(size_bytes)
        call(driver.cuMemsetD8, base, 0, size_bytes)
        self._kernel = PtxKernel(_READ_ALL, "read_all")
        self._blocks = _BLOCKS_PER_MULTIPROCESSOR * multiprocessors
        self._values = (ctypes.c_uint64(base), ctypes.c_uint64(size_bytes))

    def issue(self, stream: Any) -> None:
        """Enqueue the reading."""
        self._kernel.issue(stream, self._blocks, *self._values)


class SharedSpoiler:
    """Fill the shared memory of all multiprocessors: a kernel that reads it unset is wrong then."""

    def __init__(self, shared_bytes: int, multiprocessors: int) -> None:
        self._kernel = PtxKernel(_FILL_SHARED, "fill_shared")
        self._shared_bytes, self._blocks = shared_bytes, 2 * multiprocessors
        name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute, self._kernel.function, name, shared_bytes)

    def issue(self, stream: Any) -> None:
        """Enqueue the filling, with one of two patterns."""
        word = secrets.choice(POISONS) * 0x01010101
        values = (ctypes.c_uint32(self._shared_bytes), ctypes.c_uint32(word))
        self._kernel.issue(stream, self._blocks, *values, shared_bytes=self._shared_bytes)
