"""The launch that writes late, as the driver is asked for it: no GPU is needed."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tuner.device.cuda import buffers
from tuner.device.cuda import driver as ptx
from tuner.device.cuda.buffers import DELAY_NS, MOST_BYTES, LateWriter

FIRST_COPY = 1 << 40


class Driver:
    """Notes the driver's calls, and what a launch is given."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.launched: list[tuple[tuple[int, ...], list[int]]] = []
        self.full = False

    def call(self, function: Any, *arguments: Any) -> int:
        self.asked.append(function.__name__)
        if function.__name__ == "cuLaunchKernel":
            pointers = (ctypes.c_void_p * 4).from_address(arguments[9])
            values = [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]
            self.launched.append((arguments[1:8], values))
        return 1

    def allocate(self, size_bytes: int) -> int:
        if self.full:
            raise MemoryError
        self.asked.append(f"allocate {size_bytes}")
        return FIRST_COPY


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(ptx, "call", fake.call)
    monkeypatch.setattr(buffers, "call", fake.call)
    monkeypatch.setattr(buffers, "allocate", fake.allocate)
    return fake


def test_what_the_memory_holds_is_copied_made_stale_and_written_late(driver: Driver) -> None:
    writer = LateWriter(132)
    driver.asked.clear()
    assert writer.issue(4096, 1 << 20, "stream")
    assert driver.asked == [
        f"allocate {1 << 20}",
        "cuMemcpyDtoDAsync",
        "cuMemsetD8Async",
        "cuLaunchKernel",
    ]
    values = [4096, FIRST_COPY, 1 << 20, DELAY_NS]
    assert driver.launched == [((33, 1, 1, ptx.THREADS, 1, 1, 0), values)]


def test_the_copy_is_kept_until_it_is_too_small_or_closed(driver: Driver) -> None:
    writer = LateWriter(2)
    assert writer.issue(4096, 1 << 20, "stream")
    driver.asked.clear()
    assert writer.issue(4096, 1 << 10, "stream")
    assert driver.asked[0] == "cuMemcpyDtoDAsync"
    driver.asked.clear()
    assert writer.issue(4096, 1 << 21, "stream")
    assert driver.asked[:2] == ["cuMemFree", f"allocate {1 << 21}"]
    driver.asked.clear()
    writer.close()
    writer.close()
    assert driver.asked == ["cuMemFree"]


def test_without_room_nothing_is_made_stale(driver: Driver) -> None:
    writer = LateWriter(132)
    driver.asked.clear()
    assert not writer.issue(4096, MOST_BYTES + 16, "stream")
    driver.full = True
    assert not writer.issue(4096, 1 << 20, "stream")
    assert driver.asked == []
