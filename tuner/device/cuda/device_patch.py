"""Inputs that differ in each set of buffers, anew before each replay, by a kernel of our own."""

from __future__ import annotations

import ctypes
import secrets
from itertools import pairwise
from typing import Any

import numpy as np
from cuda.bindings import driver

from tuner.device.cuda.buffers import Buffers
from tuner.device.cuda.driver import POSITION, PTX, allocate, call, load_kernel
from tuner.device.encoding import Array
from tuner.device.layout import Patch

_BLOCKS = 264
_NO_SET = (1 << 32) - 1
# What the kernel knows of each element of a change: where the part of its array begins in which it
# is drawn, of how many elements that is; where the array begins, of how many elements; how many
# bytes one has, and where a change has its value.
_COLUMN = ("part", "span", "array", "size", "width", "value")
_LOADS = "\n".join(f"  ld.global.u64 %{name}, [%d3+{8 * k}];" for k, name in enumerate(_COLUMN))


def _mix_number(number: str) -> str:
    """Make a random number of one: the last steps of SplitMix64 (Steele et al., OOPSLA 2014)."""
    return f"""\
  shr.u64 %d4, {number}, 30;
  xor.b64 {number}, {number}, %d4;
  mul.lo.u64 {number}, {number}, 0xBF58476D1CE4E5B9U;
  shr.u64 %d4, {number}, 27;
  xor.b64 {number}, {number}, %d4;
  mul.lo.u64 {number}, {number}, 0x94D049BB133111EBU;
  shr.u64 %d4, {number}, 31;
  xor.b64 {number}, {number}, %d4;
"""


def _place_element(seed: str) -> str:
    """Draw into %place which element of its part a seed chooses; %drawn is a number for more."""
    return f"""\
  mul.lo.u64 %drawn, %index, 0x9E3779B97F4A7C15U;
  add.u64 %drawn, %drawn, {seed};
{_mix_number("%drawn")}\
  mul.hi.u64 %place, %drawn, %span;
  mad.lo.u64 %place, %place, %width, %part;
"""


def _copy_element(label: str) -> str:
    """Copy an element's bytes from %from to its %place in the set."""
    return f"""\
  add.u64 %to, %mine, %place;
  mov.u64 %left, %width;
{label}:
  ld.global.u8 %h1, [%from];
  st.global.u8 [%to], %h1;
  add.u64 %from, %from, 1;
  add.u64 %to, %to, 1;
  sub.u64 %left, %left, 1;
  setp.ne.u64 %p2, %left, 0;
  @%p2 bra {label};
"""


# A thread has an element of a change in a set: it undoes what the replay before had there, then
# gives another element of the part the value of any of the array. In the set that is judged places
# and values are those of its change. Elements have parts of their own: no two threads meet.
_APPLY = f"""{PTX}
.visible .entry apply(
  .param .u64 base, .param .u64 set_bytes, .param .u64 pristine, .param .u64 columns,
  .param .u64 seed_before, .param .u64 places_before, .param .u64 seed, .param .u64 places,
  .param .u64 values,
  .param .u32 judged_before, .param .u32 judged, .param .u32 count, .param .u32 total)
{{
  .reg .pred %p<4>;
  .reg .b16 %h<2>;
  .reg .b32 %r<14>;
  .reg .b64 %d<12>;
  .reg .b64 %part, %span, %array, %size, %width, %value;
  .reg .b64 %index, %drawn, %place, %mine, %from, %to, %left;
  ld.param.u64 %d1, [base];
  ld.param.u64 %d2, [set_bytes];
  ld.param.u64 %d5, [pristine];
  ld.param.u64 %d6, [seed_before];
  ld.param.u64 %d7, [seed];
  ld.param.u32 %r7, [count];
  ld.param.u32 %r8, [total];
  ld.param.u32 %r12, [judged_before];
  ld.param.u32 %r13, [judged];
{POSITION}next:
  setp.ge.u32 %p1, %r5, %r8;
  @%p1 ret;
  div.u32 %r9, %r5, %r7;
  rem.u32 %r10, %r5, %r7;
  cvt.u64.u32 %index, %r9;
  mad.lo.u64 %mine, %index, %d2, %d1;
  cvt.u64.u32 %index, %r5;
  ld.param.u64 %d3, [columns];
  mul.wide.u32 %d8, %r10, {8 * len(_COLUMN)};
  add.u64 %d3, %d3, %d8;
{_LOADS}
  mul.wide.u32 %d8, %r10, 8;
  setp.eq.u64 %p1, %d6, 0;
  @%p1 bra anew;
{_place_element("%d6")}\
  setp.ne.u32 %p1, %r9, %r12;
  @%p1 bra undo;
  ld.param.u64 %d9, [places_before];
  add.u64 %d9, %d9, %d8;
  ld.global.u64 %place, [%d9];
undo:
  add.u64 %from, %d5, %place;
{_copy_element("undone")}\
anew:
{_place_element("%d7")}\
{_mix_number("%drawn")}\
  mul.hi.u64 %from, %drawn, %size;
  mad.lo.u64 %from, %from, %width, %array;
  add.u64 %from, %from, %d5;
  setp.ne.u32 %p1, %r9, %r13;
  @%p1 bra draw;
  ld.param.u64 %d9, [places];
  add.u64 %d9, %d9, %d8;
  ld.global.u64 %place, [%d9];
  ld.param.u64 %from, [values];
  add.u64 %from, %from, %value;
draw:
{_copy_element("drawn")}\
  add.u32 %r5, %r5, %r6;
  bra next;
}}
"""


class DevicePatch:
    """Give each set of buffers, before each replay, other elements at places of its own.

    An element of a call that nobody judges takes the value of another one of its array: that may be
    an index. A judged call meets a change of the patch, and nothing else. `pristine` is where the
    inputs are as they are without any.
    """

    def __init__(self, patch: Patch, pristine: int) -> None:
        self.patch, self._pristine = patch, pristine
        self._allocated: list[int] = []
        # What the sets hold: the seed of it, and the judged one with its change. 0: the pristine.
        self._before: tuple[int, tuple[int, int] | None] = (0, None)
        if not patch.changes:
            return
        rows: list[tuple[int, ...]] = []
        value = 0
        for varied in self.patch.varied:
            for begin, end in pairwise(varied.edges()):
                part = varied.offset + int(begin) * varied.width_bytes, int(end - begin)
                rows.append((*part, varied.offset, varied.size, varied.width_bytes, value))
                value += varied.width_bytes
        columns = np.array(rows, np.int64)
        offsets = np.array([change.offsets for change in patch.changes], np.int64)
        values = b"".join(change.after for change in patch.changes)
        self._count, self._change_bytes = len(columns), offsets.shape[1]
        self._tables = self._send(columns)
        self._places = self._send(np.ascontiguousarray(offsets[:, columns[:, -1]]))
        self._values = self._send(np.frombuffer(values, np.uint8))
        # Copies may return before they have ended, and our stream doesn't wait for the default one.
        call(driver.cuCtxSynchronize)

    def forget(self) -> None:
        """Take all sets for pristine: they have been filled anew."""
        self._before = 0, None

    def apply(self, judged: tuple[int, int] | None, buffers: Buffers, stream: Any) -> None:
        """Enqueue what makes all sets differ from one another and from what they were.

        `judged` are the set that meets a change, and the number of that.
        """
        if not self.patch.changes:
            return
        seed_before, judged_before = self._before
        seed = secrets.randbits(64) or 1
        self._before = seed, judged
        addresses = (
            *(buffers.base, buffers.set_bytes, self._pristine, self._tables),
            *(seed_before, self._places_of(judged_before), seed, self._places_of(judged)),
            self._values + (judged[1] - 1) * self._change_bytes if judged else 0,
        )
        sets = (pair[0] if pair else _NO_SET for pair in (judged_before, judged))
        numbers = (*sets, self._count, self._count * buffers.sets)
        load_kernel(_APPLY, "apply").issue(
            stream, _BLOCKS, *map(ctypes.c_uint64, addresses), *map(ctypes.c_uint32, numbers)
        )

    def close(self) -> None:
        for base in self._allocated:
            call(driver.cuMemFree, base)
        self._allocated.clear()

    def _places_of(self, judged: tuple[int, int] | None) -> int:
        return self._places + (judged[1] - 1) * self._count * 8 if judged else 0

    def _send(self, content: Array) -> int:
        base = allocate(content.nbytes)
        self._allocated.append(base)
        call(driver.cuMemcpyHtoD, base, content.ctypes.data, content.nbytes)
        return base
