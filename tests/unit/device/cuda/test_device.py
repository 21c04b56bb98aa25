"""The `cuda` device without a GPU: one that is not opened leaves nothing; what buffers take."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import descendants
from filelock import FileLock

from tuner.device.cuda.buffers import Buffers, MappedArena
from tuner.device.cuda.device import CudaDevice
from tuner.device.cuda.driver import CudaError
from tuner.device.layout import lay_out
from tuner.device.select import gpu_count
from tuner.device.timing import Rotation
from tuner.model.errors import DeviceError, KernelError, TunerError
from tuner.model.kernel import KernelSpec

ARGUMENTS = (("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileLock:
    """The lock of a GPU that is called 0, in a cache folder of this test; none can be seen."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("tuner.device.cuda.device.gpu_uuid", lambda ordinal: "GPU-none")
    folder = tmp_path / "kernel-tune"
    folder.mkdir()
    return FileLock(folder / "GPU-none.lock")


def test_a_gpu_in_use_is_refused_before_anything_starts(
    lock: FileLock, make_spec: Callable[..., KernelSpec]
) -> None:
    with lock, pytest.raises(DeviceError, match="GPU 0 is in use by another `tune`") as caught:
        CudaDevice(0, make_spec(*ARGUMENTS), {})
    assert caught.value.remedy is not None
    assert "--device cuda:N" in caught.value.remedy


def test_a_device_that_does_not_start_leaves_the_gpu_and_no_process(
    lock: FileLock, make_spec: Callable[..., KernelSpec]
) -> None:
    others = {one.pid for one in descendants(os.getpid())}  # devices of other tests, left open
    with pytest.raises(TunerError) as caught:
        CudaDevice(0, make_spec(*ARGUMENTS), {})
    assert not isinstance(caught.value, KernelError)
    with lock.acquire(timeout=0):
        left = [one.command for one in descendants(os.getpid()) if one.pid not in others]
        assert not [one for one in left if "tune-verifier" in one or "tune-worker" in one]


def test_without_a_driver_or_a_gpu_there_is_nothing_to_lock(
    monkeypatch: pytest.MonkeyPatch, make_spec: Callable[..., KernelSpec]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if gpu_count():
        pytest.skip("the driver was started before the GPU could be hidden")
    with pytest.raises(CudaError):
        CudaDevice(0, make_spec(*ARGUMENTS), {})


@pytest.mark.parametrize("role", ["input", "inout"])
def test_buffers_count_all_the_memory_that_they_hold(
    role: str, monkeypatch: pytest.MonkeyPatch, make_spec: Callable[..., KernelSpec]
) -> None:
    allocated: list[int] = []
    where = "tuner.device.cuda.buffers.allocate"
    monkeypatch.setattr(where, lambda size_bytes: allocated.append(size_bytes) or 4096)
    arena = MappedArena.__new__(MappedArena)  # mapping one needs a GPU
    spec = make_spec(ARGUMENTS[0], ("x", "float32", ("T",), role))
    arena.layout = lay_out(spec, {"T": 1000})
    buffers = Buffers(arena, Rotation(3, 2), None)
    assert buffers.size_bytes == 3 * arena.layout.total_bytes
    assert buffers.held_bytes == sum(allocated)
