"""Copies of arrays for a replay: each is as new, whatever the calls of the replay before left."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ptx_runner import DeviceMemory

from tuner.device.cuda import buffers as module
from tuner.device.cuda.buffers import FEW_SETS, Buffers, LaunchArguments
from tuner.device.layout import lay_out
from tuner.device.timing import FINALS, SEARCH, Rotation, calls_per_replay, rotation
from tuner.model.kernel import KernelSpec

MIB = 1 << 20


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> DeviceMemory:
    memory = DeviceMemory(4 * MIB)
    for name in ("call", "allocate"):
        monkeypatch.setattr(module, name, getattr(memory, name))
    return memory


@pytest.fixture(params=["input", "inout"])
def arena(
    request: pytest.FixtureRequest, memory: DeviceMemory, make_spec: Callable[..., KernelSpec]
) -> Any:
    arrays = ("y", "float32", ("T",), "output"), ("x", "float32", ("T",), request.param)
    layout = lay_out(make_spec(*arrays), {"T": 4})
    arena = SimpleNamespace(layout=layout, base=memory.allocate(layout.total_bytes))
    memory.bytes[arena.base : arena.base + layout.total_bytes] = bytes(range(256)) * 8
    return arena


class Lazy:
    """A kernel that leaves a result alone which is there already: of no single byte, as poison."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory, self.worked = memory, 0

    def issue(self, arguments: LaunchArguments) -> None:
        y, x = (arguments.layout.slot(name) for name in ("y", "x"))
        at, source = arguments.base + y.offset, arguments.base + x.offset
        if len(set(self.memory.bytes[at : at + y.size_bytes])) == 1:
            self.worked += 1
            result = bytes(255 - byte for byte in self.memory.bytes[source : source + 16])
            self.memory.bytes[at : at + y.size_bytes] = result
            if x.role == "inout":
                self.memory.bytes[source : source + 16] = bytes(16)


@pytest.mark.parametrize("policy", [SEARCH, FINALS])
@pytest.mark.parametrize("footprint", [MIB // 100, MIB, 4 * MIB, 30 * MIB, 300 * MIB])
@pytest.mark.parametrize("us", [2.0, 40.0])
def test_no_call_of_a_replay_finds_a_result_of_an_earlier_one(
    memory: DeviceMemory, arena: Any, policy: Any, footprint: int, us: float
) -> None:
    chosen = rotation(policy, footprint, footprint, 50 * MIB, 80 << 30)
    calls = min(calls_per_replay(policy, chosen, us), 300)
    buffers, kernel = Buffers(arena, Rotation(min(chosen.sets, 300), 1), None), Lazy(memory)
    for replay in range(3):
        buffers.fill(calls)
        buffers.spoil(replay, calls)
        for arguments in buffers.arguments[:calls]:
            kernel.issue(arguments)
    assert kernel.worked == 3 * calls


def test_what_a_replay_uses_holds_what_the_arena_does(memory: DeviceMemory, arena: Any) -> None:
    size = arena.layout.total_bytes
    buffers = Buffers(arena, Rotation(2 * FEW_SETS, 2), None)
    x = arena.layout.slot("x")
    for seed, filled in ((1, (3, 2, 7)), (2, (16,))):
        content = bytes((seed * byte) % 256 for byte in range(size))
        memory.bytes[arena.base : arena.base + size] = content
        buffers.renew()
        for sets in filled:
            buffers.fill(sets)
            buffers.spoil(9, sets)
            for place in range(sets):
                base = buffers.base + place * size
                held = memory.bytes[base + x.offset : base + x.offset + x.size_bytes]
                assert held == content[x.offset : x.offset + x.size_bytes]
