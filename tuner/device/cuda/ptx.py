"""Small kernels of our own, in PTX: the driver alone loads them."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver

from tuner.device.cuda.driver import call

THREADS = 256  # of a block
# All threads of the grid take turns at 16 bytes each. In bytes, %d3 is where a thread begins and
# %d4 how far on it continues; uses %r1 to %r6.
TURNS = """\
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.u32 %r5, %r1, %r2, %r3;
  mul.lo.u32 %r6, %r4, %r2;
  mul.wide.u32 %d3, %r5, 16;
  mul.wide.u32 %d4, %r6, 16;
"""


class PtxKernel:
    """A kernel of a PTX module, in the current context."""

    def __init__(self, text: str, name: str) -> None:
        module = call(driver.cuModuleLoadData, text.encode() + b"\0")
        self.function = call(driver.cuModuleGetFunction, module, name.encode())

    def issue(self, stream: Any, blocks: int, *values: Any, shared_bytes: int = 0) -> None:
        """Enqueue a launch with the `ctypes` numbers that it takes; they are copied at once."""
        arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = (blocks, 1, 1, THREADS, 1, 1, shared_bytes)
        call(driver.cuLaunchKernel, self.function, *shape, stream, ctypes.addressof(arguments), 0)
