"""Whether two ranges of the GPU's memory hold the same bytes, found out there."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver

from tuner.device.cuda.driver import TURNS, call, load_kernel

_BLOCKS = 264
# Sets a flag where two ranges differ; their lengths are rounded up to 16 bytes, into the guards.
_DIFFER = f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry differ(
  .param .u64 first, .param .u64 second, .param .u64 size_bytes, .param .u64 flag)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<16>;
  .reg .b64 %d<10>;
  ld.param.u64 %d1, [first];
  ld.param.u64 %d2, [second];
  ld.param.u64 %d5, [size_bytes];
  ld.param.u64 %d6, [flag];
{TURNS}  mov.u32 %r7, 0;
more:
  setp.ge.u64 %p1, %d3, %d5;
  @%p1 bra done;
  add.u64 %d7, %d1, %d3;
  add.u64 %d8, %d2, %d3;
  ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%d7];
  ld.global.v4.u32 {{%r12, %r13, %r14, %r15}}, [%d8];
  xor.b32 %r8, %r8, %r12;
  xor.b32 %r9, %r9, %r13;
  xor.b32 %r10, %r10, %r14;
  xor.b32 %r11, %r11, %r15;
  or.b32 %r8, %r8, %r9;
  or.b32 %r10, %r10, %r11;
  or.b32 %r7, %r7, %r8;
  or.b32 %r7, %r7, %r10;
  add.u64 %d3, %d3, %d4;
  bra more;
done:
  setp.eq.u32 %p2, %r7, 0;
  @%p2 ret;
  mov.u32 %r8, 1;
  st.global.u32 [%d6], %r8;
  ret;
}}
"""


def compare(stream: Any, first: int, second: int, size_bytes: int, flag: int) -> None:
    """Enqueue a comparison; the word at `flag` becomes 1 where they differ."""
    values = map(ctypes.c_uint64, (first, second, -(-size_bytes // 16) * 16, flag))
    load_kernel(_DIFFER, "differ").issue(stream, _BLOCKS, *values)


def read_flag(flag: int) -> bool:
    """Read a flag, once what is enqueued has ended."""
    word = ctypes.c_uint32()
    call(driver.cuMemcpyDtoH, ctypes.addressof(word), flag, 4)
    return bool(word.value)
