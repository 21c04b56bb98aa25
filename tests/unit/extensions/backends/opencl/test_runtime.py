"""A platform that is there and compiles nothing."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tuner.extensions.backends.opencl import runtime
from tuner.extensions.backends.opencl.runtime import OpenclDescription
from tuner.model.errors import DeviceError

LOG = """clBuildProgram failed: BUILD_PROGRAM_FAILURE

Build on <pyopencl.Device 'pthread-CPU'>:

error: unknown target CPU 'generic'
Device pthread-CPU failed to build the program
"""


class BuildError(Exception):
    """What `pyopencl.Error` is."""


class Unbuildable:
    def __init__(self, context: object, source: str) -> None:
        pass

    def build(self) -> None:
        raise BuildError(LOG)


def test_a_platform_older_than_the_processor_is_one_error_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    description = OpenclDescription(0, "pthread-CPU", "Old", "3.0", 2, 1.0, is_cpu=True)
    module = SimpleNamespace(
        Context=lambda devices: None,
        CommandQueue=lambda context, properties: None,
        command_queue_properties=SimpleNamespace(PROFILING_ENABLE=0),
        Program=Unbuildable,
        Error=BuildError,
    )
    monkeypatch.setitem(sys.modules, "pyopencl", module)
    monkeypatch.setattr(runtime, "find_device", lambda number: (description, None))
    with pytest.raises(DeviceError) as told:
        runtime.Opencl(0)
    assert told.value.message == (
        "CPU (Old) compiles nothing here: error: unknown target CPU 'generic'"
    )
    assert "a newer PoCL" in told.value.remedy
