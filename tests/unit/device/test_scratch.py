"""Scratch whose shape a config chooses, on the `host` device: whose it is, and where it ends."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from host_programs import cached_compiler

from tuner.device.base import Program
from tuner.device.layout import ALIGNMENT, GUARD_BYTES, lay_out
from tuner.extensions.cpu.device import HostDevice
from tuner.model.config import Config
from tuner.model.kernel import MOST_SCRATCH_BYTES, ChosenScratch, KernelSpec, Workload
from tuner.model.trial import INITIAL, Status
from tuner.space.load import Definition, load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

FOLDER = Path(__file__).parents[2] / "support" / "weighted_sum"
WORKLOAD = Workload.of({"T": 5, "K": 1024})


@dataclass(frozen=True)
class Bench:
    """The project's evaluator, with another template where a test has one."""

    definition: Definition
    evaluator: Evaluator

    @property
    def spec(self) -> KernelSpec:
        return self.definition.spec

    def program(
        self, splits: int, replace: str = "", by: str = "", *, finish: str = "launch"
    ) -> Program:
        text = (FOLDER / "weighted_sum.cu.j2").read_text("utf-8").replace(replace, by)
        template = Template.from_text(text, FOLDER / "weighted_sum.cu.j2")
        one = self.evaluator
        candidate = Candidate(INITIAL, self.definition.space, template)
        made = Evaluator(one.spec, candidate, {}, one.compiler, one.device)
        config = {**(self.definition.space.default or {}), "splits": splits, "finish": finish}
        return made.program(WORKLOAD, Config.of(config))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    definition = load_definition(FOLDER / "weighted_sum.yaml")
    spec, space = definition.spec, definition.space
    candidate = Candidate(INITIAL, space, Template.load(spec.template))
    device = HostDevice(spec, {})
    with cached_compiler() as compiler:
        yield Bench(definition, Evaluator(spec, candidate, {}, compiler, device))
    device.close()


def partial(splits: int) -> dict[str, ChosenScratch]:
    return {"partial": ChosenScratch("partial", (splits, 32))}


def test_configs_differ_in_the_size_of_scratch_and_in_nothing_else(bench: Bench) -> None:
    rooms = {"partial": 4 * 4 * 32}
    small, large = (
        lay_out(bench.spec, WORKLOAD.values, scratch=partial(splits), rooms=rooms)
        for splits in (1, 4)
    )
    assert small.total_bytes == large.total_bytes
    assert [slot.offset for slot in small.slots] == [slot.offset for slot in large.slots]
    assert small.footprint_bytes == large.footprint_bytes
    (first,), (second,) = ([s for s in one.slots if s.sized] for one in (small, large))
    assert (first.size_bytes, second.size_bytes) == (128, 512)
    behind = next(guard for guard in small.guards if guard[0] == first.offset + 128)
    assert behind[1] - behind[0] >= GUARD_BYTES + 384


def test_an_array_by_pages_ends_with_its_room_whatever_its_size(bench: Bench) -> None:
    rooms = {"partial": 3 * 4096}
    layouts = [
        lay_out(
            bench.spec,
            WORKLOAD.values,
            by_pages=True,
            scratch=partial(splits),
            rooms=rooms,
        )
        for splits in (1, 4)
    ]
    slots = [slot for one in layouts for slot in one.slots if slot.sized]
    ends = {slot.offset + -(-slot.size_bytes // ALIGNMENT) * ALIGNMENT for slot in slots}
    assert len(ends) == 1
    assert ends.pop() % 4096 == 0
    assert len({one.total_bytes for one in layouts}) == 1


def test_each_config_is_right_whichever_was_there_before(bench: Bench) -> None:
    for splits in (1, 4, 2, 1):
        program = bench.program(splits)
        assert program.scratch == (partial(splits)["partial"],)
        outcome = bench.evaluator.device.verify(program)
        assert outcome.status is Status.CORRECT, outcome.reason


def test_who_writes_beyond_its_own_scratch_is_caught_where_another_config_has_more(
    bench: Bench,
) -> None:
    device = bench.evaluator.device
    assert device.verify(bench.program(4)).status is Status.CORRECT
    outcome = device.verify(bench.program(1, "partial[part * rows", "partial[32 + part * rows"))
    assert outcome.status is Status.INCORRECT
    assert outcome.reason.endswith("wrote outside its buffers (before done)")
    assert device.verify(bench.program(1)).status is Status.CORRECT


def test_configs_with_scratch_of_several_sizes_are_compared(bench: Bench) -> None:
    evaluator = bench.evaluator
    programs = [evaluator.baseline_program(WORKLOAD), *(bench.program(n) for n in (1, 4, 2))]
    found = evaluator.device.compare(programs, rounds=6)
    assert found.faults == ("",) * 4
    assert all(len(row) == 4 for row in found.times_us)


def test_a_config_with_too_much_scratch_is_over_a_limit(bench: Bench) -> None:
    huge = Workload.of({"T": MOST_SCRATCH_BYTES // 4, "K": 1024})
    default = bench.definition.space.default
    assert default is not None
    trial = bench.evaluator.finish(bench.evaluator.start(huge, default))
    assert trial.status is Status.RESOURCE_LIMIT
    assert trial.reason == "its scratch takes 2,147,483,648 bytes, and the most is 1,073,741,824"


def test_what_no_config_sizes_counts_as_before(bench: Bench) -> None:
    assert bench.spec.footprint_bytes(WORKLOAD) == 4 * (5 + 5 * 1024 + 1024 + 5)
    names = {**WORKLOAD.values, "splits": 0, "threads": 32}
    assert bench.spec.scratch_refusal(names) == "its scratch `partial` has the shape (0, 32)"


def test_counters_that_are_zero_again_after_each_call_serve_the_next(bench: Bench) -> None:
    evaluator = bench.evaluator
    last = bench.program(4, finish="last")
    outcome = evaluator.device.run(last, full_verification=True)
    assert outcome.status is Status.CORRECT, outcome.reason
    programs = [evaluator.baseline_program(WORKLOAD), last, bench.program(2, finish="last")]
    assert evaluator.device.compare(programs, rounds=6).faults == ("", "", "")


def test_who_leaves_a_counter_is_told_which_and_harms_nobody_else(bench: Bench) -> None:
    device = bench.evaluator.device
    outcome = device.verify(bench.program(2, "done[row] = 0;", "done[row] = 7;", finish="last"))
    assert outcome.status is Status.INCORRECT
    # It was called a few times before.
    assert re.search(r"left scratch done\[0\] = (7|9|11), expected 0", outcome.reason)
    outcome = device.verify(bench.program(2, finish="last"))
    assert outcome.status is Status.CORRECT, outcome.reason


def test_zeroed_scratch_is_told_from_what_may_hold_anything(bench: Bench) -> None:
    layout = lay_out(bench.spec, WORKLOAD.values)
    assert [slot.name for slot in layout.zeroed] == ["done"]
    assert [slot.name for slot in layout.spoiled] == ["out", "partial"]
