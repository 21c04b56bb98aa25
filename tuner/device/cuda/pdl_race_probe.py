"""A launch that writes its results late: who reads them before its end reads something else."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver

from tuner.device.cuda.driver import TURNS, PtxKernel, allocate, call

# Larger arrays are not copied: a kernel that does not wait shows on smaller ones.
MOST_BYTES = 256 << 20
# Beside the microseconds in which a programmatic launch starts and reads.
DELAY_NS = 50_000
_STALE = 0xFF
# Lets the next launch start at once, sleeps, and copies 16 bytes at a time.
_WRITE_LATE = f"""
.version 7.8
.target sm_90
.address_size 64
.visible .entry write_late(
  .param .u64 to, .param .u64 from, .param .u64 size_bytes, .param .u64 delay_ns)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<12>;
  .reg .b64 %d<14>;
  griddepcontrol.launch_dependents;
  ld.param.u64 %d1, [to];
  ld.param.u64 %d2, [from];
  ld.param.u64 %d5, [size_bytes];
  ld.param.u64 %d6, [delay_ns];
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d2, %d2;
  mov.u64 %d7, %globaltimer;
still:
  mov.u64 %d8, %globaltimer;
  sub.u64 %d8, %d8, %d7;
  setp.lt.u64 %p1, %d8, %d6;
  @%p1 bra still;
{TURNS}more:
  setp.ge.u64 %p2, %d3, %d5;
  @%p2 ret;
  add.u64 %d9, %d2, %d3;
  add.u64 %d10, %d1, %d3;
  ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%d9];
  st.global.v4.u32 [%d10], {{%r8, %r9, %r10, %r11}};
  add.u64 %d3, %d3, %d4;
  bra more;
}}
"""


class LateWriter:
    """Stand for the launch that makes a kernel's inputs while the kernel may already run.

    What the next launch of the stream finds in memory is stale until this one ends. A programmatic
    launch that reads before `griddepcontrol.wait` computes on that; what it writes is overwritten.
    """

    def __init__(self, multiprocessors: int) -> None:
        # On the others a block starts at once, even one that needs a multiprocessor to itself.
        self._blocks = max(1, multiprocessors // 4)
        self._kernel = PtxKernel(_WRITE_LATE, "write_late")
        self._copy, self._held_bytes = 0, 0

    def issue(self, address: int, size_bytes: int, stream: Any) -> bool:
        """Enqueue making the memory stale and writing it late; False where there is no room."""
        if size_bytes > MOST_BYTES:
            return False
        if size_bytes > self._held_bytes:
            self.close()
            try:
                self._copy, self._held_bytes = allocate(size_bytes), size_bytes
            except MemoryError:  # a check less is better than a session less
                return False
        call(driver.cuMemcpyDtoDAsync, self._copy, address, size_bytes, stream)
        call(driver.cuMemsetD8Async, address, _STALE, size_bytes, stream)
        numbers = (address, self._copy, size_bytes, DELAY_NS)
        self._kernel.issue(stream, self._blocks, *map(ctypes.c_uint64, numbers))
        return True

    def close(self) -> None:
        """Free the memory."""
        if self._held_bytes:
            call(driver.cuMemFree, self._copy)
        self._copy, self._held_bytes = 0, 0
