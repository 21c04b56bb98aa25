"""Our kernels between launches that aren't ours, which use memory as soon as they may begin.

A chain in one stream: something that lasts, one of our kernels with the attribute of programmatic
dependent launch, and a successor that has it too and does not wait before it touches memory. What
is right is what a stream without overlap would leave.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.app.check import target_info
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import CompileTarget
from tuner.device.cuda import buffers
from tuner.device.cuda.buffers import LateWriter
from tuner.device.cuda.driver import (
    LaunchArguments,
    Launcher,
    LoadedProgram,
    PtxKernel,
    call,
    driver,
)
from tuner.device.layout import Layout, Slot, lay_out
from tuner.model.config import Config
from tuner.model.hardware import architecture_for
from tuner.space.choices import chosen_operators
from tuner.space.load import load_definition
from tuner.space.template import Template

SPACES = Path(__file__).parents[2] / "search_spaces" / "sglang"
# Those whose inputs may be any numbers.
OPERATORS = (
    *("fused_add_rmsnorm", "merge_state", "moe_sum_reduce", "per_token_group_quant"),
    *("per_token_quant_fp8", "rmsnorm", "silu_and_mul", "topk_softmax"),
)
BLOCKS = 16
ATTEMPTS = 10


@dataclass
class Chain:
    """A kernel, its arrays in one allocation, and the launches around it."""

    layout: Layout
    memory: Any
    launchers: Mapping[bool, Launcher]
    late: LateWriter
    # Ready before the chain begins: to load one takes longer than the launch before ours lasts.
    overwriter: PtxKernel
    reader: PtxKernel
    stream: int

    @property
    def base(self) -> int:
        return int(self.memory.data.ptr)

    def slots(self, role: Any) -> tuple[Slot, ...]:
        return self.layout.with_role(role)

    def bytes_of(self, slot: Slot) -> Any:
        return self.memory[slot.offset : slot.offset + slot.size_bytes].copy()

    def run(self, *, isolated: bool = False) -> None:
        self.launchers[isolated].issue(LaunchArguments(self.layout, self.base))

    def after(self, successor: PtxKernel, *numbers: int) -> None:
        """Launch a successor that begins as soon as it may, and wait for all."""
        values = map(ctypes.c_uint64, numbers)
        successor.issue(self.stream, BLOCKS, *values, programmatic=True)
        self.wait()

    def overwrite(self, slot: Slot) -> None:
        self.after(self.overwriter, self.base + slot.offset, slot.size_bytes)

    def wait(self) -> None:
        call(driver.cuStreamSynchronize, self.stream)


@pytest.fixture
def chain_of(compiler: NvrtcPool, capability: tuple[int, int]) -> Callable[[str, str], Chain]:
    """Make the default config of an operator on its smallest workload, with a trigger."""
    import cupy

    if capability < (9, 0):
        pytest.skip("programmatic dependent launch needs compute capability 9.0")

    def make(name: str, trigger: str) -> Chain:
        definition = load_definition(SPACES / f"{name}.yaml")
        spec, operators = definition.spec, chosen_operators(definition.spec, {})
        workload = min(spec.tuned, key=spec.footprint_bytes)
        target = CompileTarget(spec, operators, target_info(architecture_for(capability)))
        assert definition.space.default is not None
        config = Config.of({**definition.space.default, "pdl_trigger": trigger})
        names = {**target.names(workload), **config}
        launches = spec.candidate_launches(names)
        assert launches[-1].pdl
        template = Template.load(spec.template, spec.include_dirs)
        source = template.render({**workload.values, **operators, **config}).source
        result = compiler.submit(target.request(source, launches)).result(60)
        assert result.ok, result.error
        layout = lay_out(spec, workload.values)
        memory = cupy.zeros(layout.total_bytes, dtype=cupy.uint8)
        for slot in layout.with_role("input", "inout"):
            memory[slot.offset : slot.offset + slot.size_bytes] = numbers(cupy, slot)
        loaded = LoadedProgram(result.cubin, result.lowered, launches)
        stream = int(call(driver.cuStreamCreate, 1))
        launchers = {one: Launcher(loaded, launches, stream, isolated=one) for one in (True, False)}
        cupy.cuda.runtime.deviceSynchronize()
        return Chain(
            layout,
            memory,
            launchers,
            LateWriter(cupy.cuda.Device().attributes["MultiProcessorCount"]),
            PtxKernel(buffers._OVERWRITE_EARLY, "overwrite_early"),
            PtxKernel(buffers._WRITE_LATE, "write_late"),
            stream,
        )

    return make


def numbers(cupy: Any, slot: Slot) -> Any:
    floats = cupy.random.default_rng(1).standard_normal(slot.shape, dtype=cupy.float32)
    if slot.dtype == "float32":
        return floats.ravel().view(cupy.uint8)
    assert slot.dtype == "bfloat16"
    return (floats.ravel().view(cupy.uint32) >> 16).astype(cupy.uint16).view(cupy.uint8)


def results(chain: Chain) -> list[Any]:
    return [chain.bytes_of(slot) for slot in chain.layout.with_role("output", "inout")]


def same(left: list[Any], right: list[Any]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(left, right, strict=True))


def alone(chain: Chain) -> list[Any]:
    """The results without overlap; arrays that are written in place are put back."""
    import cupy

    before = chain.memory.copy()
    cupy.cuda.runtime.deviceSynchronize()
    chain.run(isolated=True)
    chain.wait()
    found = results(chain)
    chain.memory[...] = before
    return found


def beside_who_overwrites_an_input(chain: Chain) -> bool:
    """Whether the results are right although the successor takes the input's memory."""
    import cupy

    expected = alone(chain)
    largest = max(chain.slots("input"), key=lambda slot: slot.size_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    chain.late.issue(chain.stream, 0, 0, 0)
    chain.run()
    chain.overwrite(largest)
    return same(results(chain), expected)


def beside_who_overwrites_an_output(chain: Chain) -> bool:
    """Whether what the successor wrote to an output stays, since it comes last."""
    import cupy

    (slot, *_) = chain.layout.with_role("output", "inout")
    alone(chain)  # The first launch of all loads the kernel, and would come too late.
    cupy.cuda.runtime.deviceSynchronize()
    chain.late.issue(chain.stream, 0, 0, 0)
    chain.run()
    chain.overwrite(slot)
    return bool((chain.bytes_of(slot) == 0xFF).all())


def beside_who_reads_what_came_before(chain: Chain) -> bool:
    """Whether the successor sees what the launch before ours wrote, and our results are right."""
    import cupy

    expected = alone(chain)
    largest = max(chain.slots("input"), key=lambda slot: slot.size_bytes)
    written = chain.bytes_of(largest)
    # Copied 16 bytes at a time.
    seen = cupy.zeros(largest.size_bytes // 16 * 16, dtype=cupy.uint8)
    cupy.cuda.runtime.deviceSynchronize()
    assert chain.late.before(SimpleNamespace(base=chain.base, layout=chain.layout), chain.stream)  # type: ignore[arg-type]
    chain.run()
    source = chain.base + largest.offset
    chain.after(chain.reader, seen.data.ptr, source, seen.size, 0)
    return same(results(chain), expected) and bool((seen == written[: seen.size]).all())


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    "beside",
    [
        beside_who_overwrites_an_input,
        beside_who_overwrites_an_output,
        beside_who_reads_what_came_before,
    ],
)
def test_what_follows_may_use_memory_at_once(
    chain_of: Callable[[str, str], Chain], name: str, beside: Callable[[Chain], bool]
) -> None:
    assert beside(chain_of(name, "exit"))


@pytest.mark.parametrize(
    "beside",
    [
        beside_who_overwrites_an_input,
        beside_who_overwrites_an_output,
        beside_who_reads_what_came_before,
    ],
)
def test_beside_an_early_trigger_it_breaks(
    chain_of: Callable[[str, str], Chain], beside: Callable[[Chain], bool]
) -> None:
    """Or these tests would show nothing. On a busy host a launch may come too late to overlap."""
    assert not all(beside(chain_of("silu_and_mul", "early")) for _ in range(ATTEMPTS))
