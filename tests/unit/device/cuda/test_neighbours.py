"""The launches beside a checked one, as the driver is asked for them: no GPU is needed."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tuner.device.cuda import buffers, neighbours
from tuner.device.cuda import driver as ptx
from tuner.device.cuda.buffers import DELAY_NS, MOST_BYTES, EagerSuccessor, LateWriter
from tuner.device.cuda.neighbours import Neighbours
from tuner.device.cuda.peers import PeerHome
from tuner.device.layout import Layout, Slot
from tuner.device.reference import PeerError
from tuner.model.errors import KernelError
from tuner.model.surroundings import Link, Neighbour, Surroundings

FIRST_COPY = 1 << 40
BASE = 4096


class Driver:
    """Notes the driver's calls, and what a launch is given."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.launched: list[tuple[tuple[int, ...], list[int]]] = []
        # Places and bytes.
        self.stale: list[tuple[int, int]] = []
        self.overwritten: list[list[int]] = []
        self.copied: list[tuple[int, ...]] = []
        self.full = False

    def call(self, function: Any, *arguments: Any) -> int:
        self.asked.append(function.__name__)
        if function.__name__ == "cuLaunchKernel":
            self.launched.append((arguments[1:8], numbers_at(arguments[9], 4)))
        elif function.__name__ == "cuLaunchKernelEx":
            self.overwritten.append(numbers_at(arguments[2], 2))
        elif function.__name__ == "cuMemsetD8Async":
            self.stale.append((arguments[0], arguments[2]))
        elif function.__name__ == "cuMemcpyDtoDAsync":
            self.copied.append(arguments[:3])
        return 1

    def allocate(self, size_bytes: int) -> int:
        if self.full:
            raise MemoryError
        self.asked.append(f"allocate {size_bytes}")
        return FIRST_COPY


def numbers_at(address: int, count: int) -> list[int]:
    pointers = (ctypes.c_void_p * count).from_address(address)
    return [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]


def arena(size_bytes: int, *, constant: bool = False) -> Any:
    slots = (
        Slot("out", "float32", (8,), "output", 256, 32),
        Slot("w", "float32", (1,), "input", 512, 4, constant=constant),
        Slot("x", "float32", (8,), "input", 768, 32),
    )
    return SimpleNamespace(base=BASE, layout=Layout(slots, (), size_bytes))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(ptx, "call", fake.call)
    monkeypatch.setattr(ptx, "_launch_config", lambda *_, **__: None)
    monkeypatch.setattr(buffers, "call", fake.call)
    monkeypatch.setattr(buffers, "allocate", fake.allocate)
    return fake


def test_what_the_memory_holds_is_copied_made_stale_and_written_late(driver: Driver) -> None:
    writer = LateWriter(132)
    driver.asked.clear()
    assert writer.before(arena(1 << 20), "stream")
    assert driver.asked == [
        f"allocate {1 << 20}",
        "cuMemcpyDtoDAsync",
        "cuMemsetD8Async",
        "cuLaunchKernel",
    ]
    values = [BASE, FIRST_COPY, 1 << 20, DELAY_NS]
    assert driver.launched == [((33, 1, 1, ptx.THREADS, 1, 1, 0), values)]


def test_constants_are_neither_stale_nor_overwritten_and_all_else_is(driver: Driver) -> None:
    memory = arena(1 << 20, constant=True)
    assert LateWriter(132).before(memory, "stream")
    assert driver.stale == [(BASE, 512), (BASE + 516, (1 << 20) - 516)]
    successor = EagerSuccessor(LateWriter(132))
    assert successor.before(memory, "stream")
    successor.after("stream")
    assert driver.overwritten == [[BASE + 768, 32]]


def test_the_copy_is_kept_until_it_is_too_small_or_closed(driver: Driver) -> None:
    writer = LateWriter(2)
    assert writer.before(arena(1 << 20), "stream")
    driver.asked.clear()
    assert writer.before(arena(1 << 10), "stream")
    assert driver.asked[0] == "cuMemcpyDtoDAsync"
    driver.asked.clear()
    assert writer.before(arena(1 << 21), "stream")
    assert driver.asked[:2] == ["cuMemFree", f"allocate {1 << 21}"]
    driver.asked.clear()
    writer.close()
    writer.close()
    assert driver.asked == ["cuMemFree"]


def test_an_eager_successor_overwrites_inputs_alone_and_brings_them_back(driver: Driver) -> None:
    successor = EagerSuccessor(LateWriter(132))
    driver.asked.clear()
    assert successor.before(arena(1 << 20), "stream")
    assert driver.launched == [((33, 1, 1, ptx.THREADS, 1, 1, 0), [0, 0, 0, DELAY_NS])]
    successor.after("stream")
    assert driver.overwritten == [[BASE + 768, 32], [BASE + 512, 4]]
    driver.copied.clear()
    successor.tidy("stream")
    back = [(BASE + 768, FIRST_COPY + 768, 32), (BASE + 512, FIRST_COPY + 512, 4)]
    assert driver.copied == back
    assert driver.asked[-1] == "cuStreamSynchronize"


@pytest.mark.parametrize("kind", [LateWriter, lambda count: EagerSuccessor(LateWriter(count))])
def test_without_room_nothing_is_touched(driver: Driver, kind: Any) -> None:
    neighbour = kind(132)
    driver.asked.clear()
    assert not neighbour.before(arena(MOST_BYTES + 16), "stream")
    driver.full = True
    assert not neighbour.before(arena(1 << 20), "stream")
    assert driver.asked == []


class Memory:
    """Has room for so much."""

    stream, blocks = None, 8

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes

    def of(self, purpose: str, size_bytes: int) -> int:
        if size_bytes > self.room_bytes:
            raise MemoryError(f"{size_bytes / 1e9:.3g} GB on the GPU: out of memory")
        return BASE

    def differ(self, first: int, second: int, size_bytes: int) -> bool:
        return False


def surrounded(home: PeerHome, room_bytes: int = 0) -> Neighbours:
    before = (Neighbour("stream", sizes=(1 << 20,), line=6), Neighbour("stream", sizes=(1 << 40,)))
    links = (Link((before[0], replace(before[1], line=7))),)
    around = Surroundings("mine", links)
    return Neighbours(around, Layout((), (), 256), cast(Any, Memory(room_bytes)), home, 32)


def test_surroundings_without_room_are_an_error_at_the_largest_neighbour() -> None:
    home = PeerHome(Path("k.py"), space=Path("k.yaml"))
    with pytest.raises(KernelError, match="stream 1099511627776 needs more memory") as raised:
        surrounded(home)
    assert (raised.value.path, raised.value.line) == (Path("k.yaml"), 7)
    assert "--surroundings alone" in (raised.value.remedy or "")
    with pytest.raises(MemoryError):
        surrounded(replace(home, source=Path("k.py")))


def test_what_fails_in_the_chain_without_an_operator_is_the_neighbours_fault() -> None:
    made = surrounded(PeerHome(Path("k.py"), space=Path("k.yaml")), 1 << 50)
    with (
        pytest.raises(
            KernelError, match=r"stream 1048576 fails in a CUDA graph: .*\.item"
        ) as raised,
        made.blame_capture(),
    ):
        raise PeerError("cannot be captured: calls .item()")
    assert raised.value.line == 6


def test_of_several_neighbours_the_one_that_is_at_fault_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = surrounded(PeerHome(Path("k.py"), space=Path("k.yaml")), 1 << 50)
    ran: list[Neighbour] = []
    monkeypatch.setattr(neighbours, "call", lambda *_: 1)
    monkeypatch.setattr(Neighbours, "_run_before", lambda _, one, arguments: ran.append(one))
    monkeypatch.setattr(Memory, "differ", lambda *_: len(ran) > 1)
    changed = np.ones(256, np.uint8)
    monkeypatch.setattr(
        neighbours,
        "_bytes_at",
        lambda address, size: changed * (address == BASE),
    )
    place = SimpleNamespace(base=BASE)
    with pytest.raises(KernelError, match="stream 1099511627776 changes memory") as raised:
        made.check([cast(Any, place)], 0)
    assert raised.value.line == 7
