"""Kernels in OpenCL for tests: a project of files, and programs that a device runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from operators import SCALE, Operator

from tuner.compiler.base import CompileRequest, source_key
from tuner.device.base import Program
from tuner.extensions.backends.opencl.compiler import OpenclPool
from tuner.extensions.backends.opencl.device import OpenclDevice
from tuner.extensions.backends.opencl.devices import list_devices
from tuner.model.kernel import Launch

needs_opencl = pytest.mark.skipif(
    not list_devices(), reason="needs an OpenCL platform: pip install '.[opencl]'"
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
