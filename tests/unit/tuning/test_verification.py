"""Further checks of configs that may win: who fails one is out, and the next best wins."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tuner.app.run import tune
from tuner.device.base import Outcome
from tuner.device.simulated import SimulatedDevice
from tuner.model.errors import KernelError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Status, Variant
from tuner.tuning.evaluator import Candidates, evaluator_of
from tuner.tuning.verification import BOUNDARY, COMPARE, Verification, Watch

BOUNDARY_WORKLOAD = Workload.of({"N": 127})


def by_block(program) -> float:
    return 10.0 + program.launches[0].threads / 64


def block_of(program) -> int:
    return program.launches[0].threads


class OddDevice(SimulatedDevice):
    """Fail the small blocks on the boundary workload, or once they have been compared."""

    def __init__(self, *, wrong_below: int = 0, faulty_below: int = 0) -> None:
        super().__init__(by_block)
        self.wrong_below, self.faulty_below = wrong_below, faulty_below
        self.verified = []

    def verify(self, program):
        self.verified.append((program.workload, program.source_key))
        if program.workload == BOUNDARY_WORKLOAD and block_of(program) < self.wrong_below:
            return Outcome(Status.INCORRECT, "out[126] is 0, expected 1")
        return super().verify(program)

    def compare(self, programs, *, rounds):
        faults = ("is 0" if block_of(p) < self.faulty_below else "" for p in programs)
        return replace(super().compare(programs, rounds=rounds), faults=tuple(faults))


class Picky:
    """A tool that finds something in small blocks, at a line of the rendered source."""

    kind = "memcheck"

    def __init__(self, wrong_below: int) -> None:
        self.wrong_below = wrong_below
        self.watched = 0

    def watch(self, programs):
        self.watched += len(programs)
        return [
            Outcome(Status.INCORRECT, "kernel.cu(6): memcheck: invalid read")
            if block_of(program) < self.wrong_below
            else Outcome(Status.CORRECT)
            for program in programs
        ]

    def close(self) -> None: ...


@pytest.fixture
def plan(make_plan, project):
    space = project / "scale.yaml"
    declared = "held_out: [{N: 3000}], edge_cases: [{N: 127}]}"
    space.write_text(space.read_text().replace("held_out: [{N: 3000}]}", declared))
    return make_plan()


def blocks(results) -> set[object]:
    return {result.config["block"] for result in results}


def test_a_config_that_is_wrong_on_a_boundary_workload_does_not_win(
    plan, make_session, compiler, listener
):
    device = OddDevice(wrong_below=64)
    with make_session(plan) as session:
        results = tune(plan, session=session, device=device, compiler=compiler, listener=listener)
        failed = [check for check in session.checks() if check.passed is False]
    assert blocks(results) == {64}
    assert {(check.kind, check.config["block"]) for check in failed} == {(BOUNDARY, 32)}
    assert failed[0].reason == "out[126] is 0, expected 1"


def test_a_winner_that_a_tool_finds_fault_with_gives_way_everywhere(
    plan, make_session, compiler, listener
):
    device, tool = OddDevice(), Picky(wrong_below=64)
    watch = Watch(tool, partial(evaluator_of, compiler=compiler, device=device), 1 << 30)
    with make_session(plan) as session:
        arguments = {"device": device, "compiler": compiler, "listener": listener}
        results = tune(plan, session=session, watches=(watch,), **arguments)
        assert blocks(results) == {64}
        assert len(results) == len(plan.config.workloads), (
            "the held-out workload got another config too"
        )
        told = next(check.reason for check in session.checks() if check.passed is False)
        assert told.startswith(f"{plan.template.path}:6: memcheck"), "in the template's lines"
        watched = tool.watched
        tune(plan, session=session, watches=(watch,), **arguments)
        assert tool.watched == watched, "a resumed run repeats nothing"


def test_a_tool_is_spared_large_workloads(plan, make_session, compiler, listener):
    device, tool = OddDevice(), Picky(wrong_below=0)
    watch = Watch(
        tool, partial(evaluator_of, compiler=compiler, device=device), largest_bytes=100_000
    )
    with make_session(plan) as session:
        arguments = {"device": device, "compiler": compiler, "listener": listener}
        tune(plan, session=session, watches=(watch,), **arguments)
        watched = {
            check.workload.values["N"] for check in session.checks() if check.kind == "memcheck"
        }
    assert watched == {127, 1000, 3000}


def test_a_finalist_that_is_wrong_after_the_comparison_does_not_win(
    plan, make_session, compiler, listener
):
    device = OddDevice(faulty_below=64)
    with make_session(plan) as session:
        results = tune(plan, session=session, device=device, compiler=compiler, listener=listener)
        kinds = {check.kind for check in session.checks() if check.passed is False}
        assert all(v.config["block"] >= 64 for c in session.comparisons() for v in c.finalists)
    assert blocks(results) == {64}
    assert kinds == {COMPARE}


def test_a_baseline_that_is_wrong_after_the_comparison_is_the_users_mistake(
    plan, make_session, compiler, listener
):
    device = OddDevice(faulty_below=256)
    with make_session(plan) as session, pytest.raises(KernelError, match="once it has been timed"):
        tune(plan, session=session, device=device, compiler=compiler, listener=listener)


def test_a_baseline_that_is_wrong_on_a_boundary_workload_is_found_before_the_search(
    plan, make_session, compiler, listener
):
    device = OddDevice(wrong_below=256)
    with make_session(plan) as session:
        with pytest.raises(
            KernelError, match="the baseline is wrong against its reference on N=127"
        ):
            tune(plan, session=session, device=device, compiler=compiler, listener=listener)
        assert not session.trials()


def test_repeating_asks_again_and_large_workloads_are_left_out(plan, make_session, compiler):
    device = OddDevice()
    candidates = Candidates(plan, compiler, device)
    config = plan.space.default
    pairs = [(workload, Variant(INITIAL, config)) for workload in plan.tuned]
    with make_session(plan) as session:
        for _ in range(2):
            verification = Verification(
                plan, session, device, candidates, repeat=True, largest_bytes=100_000
            )
            verification.verify(pairs)
            assert {check.passed for check in verification.made} == {True, None}
        assert len(device.verified) == 2
        Verification(plan, session, device, candidates).verify(pairs[:1])
        assert len(device.verified) == 2, "the session holds it"


def test_a_verdict_stands_where_its_workload_is_now_too_large(plan, make_session, compiler):
    device = OddDevice()
    candidates = Candidates(plan, compiler, device)
    pairs = [(plan.tuned[0], Variant(INITIAL, plan.space.default))]
    with make_session(plan) as session:
        Verification(plan, session, device, candidates).verify(pairs)
        later = Verification(plan, session, device, candidates, largest_bytes=1)
        later.verify(pairs)
        assert not later.made
        assert [check.passed for check in session.checks()] == [True]


def test_a_recording_is_asked_for_nothing(plan, make_session, compiler):
    device = OddDevice()
    device.info = replace(device.info, recorded=True)
    with make_session(plan) as session:
        verification = Verification(plan, session, device, Candidates(plan, compiler, device))
        verification.on_boundaries([Variant(INITIAL, plan.space.default)])
        assert not session.checks()
