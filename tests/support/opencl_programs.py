"""Kernels in OpenCL for tests: a project of files, and programs that a device runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from operators import SCALE, Operator

from tuner.compiler.base import CompileRequest, source_key
from tuner.device.base import Program
from tuner.extensions.backends.opencl.compiler import OpenclPool
from tuner.extensions.backends.opencl.device import OpenclDevice
from tuner.extensions.backends.opencl.runtime import list_devices
from tuner.model.kernel import Launch

# In a process of its own: PoCL's threads would not outlive a fork of this one. Its LLVM may be too
# old to compile for the processor, which is said of the first device that is opened.
_OPENS = "from tuner.extensions.backends.opencl.runtime import Opencl; Opencl(0)"


def opens_first_device() -> bool:
    command = [sys.executable, "-c", _OPENS]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


needs_opencl = pytest.mark.skipif(
    not list_devices() or not opens_first_device(),
    reason="needs an OpenCL platform that compiles for this processor: pip install -e '.[opencl]'",
)
RUN_TIMEOUT_S = 5.0
SCALED = """
__kernel void run(__global float* y, __global const float* x, int T) {
  for (int i = get_global_id(0); i < T; i += get_global_size(0)) y[i] = 2.0f * x[i];
}
"""
# Source and launches to a program of an operator's workload.
Build = Callable[..., Program]


@contextmanager
def opened(operator: Operator = SCALE) -> Iterator[tuple[OpenclDevice, Build]]:
    """Open the first device for an operator, and what builds programs of it."""
    device = OpenclDevice(0, operator.spec, {}, run_timeout_s=RUN_TIMEOUT_S)
    pool = OpenclPool(0, 1)

    def build(source: str, *launches: Launch) -> Program:
        launches = launches or operator.launches
        names = tuple(dict.fromkeys(launch.kernel for launch in launches))
        result = pool.submit(CompileRequest(source, names, "opencl")).result(60)
        assert result.ok, result.error
        key = source_key(source, (), "opencl")
        return Program(key, operator.workload, launches, result.cubin, result.lowered)

    try:
        yield device, build
    finally:
        pool.close()
        device.close()
