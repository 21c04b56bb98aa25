"""Memory that ends in the middle of a search costs that workload, for this run, and no other."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest

from tests.support.simulated_device import MeteredDevice, SimulatedDevice
from tuner.app.run import tune
from tuner.device.base import Outcome
from tuner.device.group import group_of
from tuner.model.config import Config
from tuner.model.errors import OutOfMemory
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Correctness, Status
from tuner.report.data import from_session
from tuner.report.sections.search import undecided_lines
from tuner.report.terminal import json_of
from tuner.session.events import LeftUndecided, SearchEnded
from tuner.tuning.run import SkippedWorkloads, unsearched_workloads
from tuner.tuning.search import FURTHER_TRIALS

SMALL, LARGE, HELD_OUT = (Workload.of({"N": n}) for n in (1000, 100000, 3000))
CONFIGS = 19


def smooth(program) -> float:
    threads = program.launches[0].threads
    items = program.config["items"] if program.config else 1
    return 10.0 * (1 + 0.1 * abs(log2(threads / 256)) + 0.1 * abs(log2(items / 4)))


class Narrow(SimulatedDevice):
    """Finds no memory for a workload once it has run so many of its configs, then or ever after."""

    def __init__(self, too_large: Workload | None = None, *, after: int = 0) -> None:
        super().__init__(smooth)
        self.too_large, self.after, self.refused = too_large, after, 0

    def require_room(self, program) -> None:
        ran = [one for one in self.ran if one.workload == program.workload and one.config]
        if program.config and program.workload == self.too_large and len(ran) >= self.after:
            self.refused += 1
            raise OutOfMemory(f"not enough memory for {program.workload}", program.workload.key)

    def run(self, program, **options):
        self.require_room(program)
        return super().run(program, **options)

    def tried(self, workload: Workload) -> list[Config]:
        return [one.config for one in self.ran if one.workload == workload and one.config]


@pytest.fixture
def run(make_plan, make_session, compiler, listener):
    """Tune on a device, in a new session or on in the one of that name, which is then closed."""

    def run(device, name="session", **changes):
        with make_session(make_plan(**changes), name) as session:
            plan = make_plan(**changes)
            tune(plan, session=session, device=device, compiler=compiler, listener=listener)
            return session

    return run


@pytest.fixture
def wide(project):
    """Give the kernel more valid configs than are tried whole."""
    space = project / "scale.yaml"
    blocks = ", ".join(str(32 * number) for number in range(1, 33))
    text = space.read_text().replace("block: [32, 64, 128, 256, 512]", f"block: [{blocks}]")
    text = text.replace("items: [1, 2, 4, 8]", "items: [1, 2, 3, 4, 5, 6, 7, 8]")
    space.write_text(text.replace("block * items <= 2048", "block * items <= 8192"))


def decided(session) -> set[Workload]:
    return {one.workload for one in session.results()}


@pytest.mark.parametrize("searcher", ["exhaustive", "random", "auto", "optuna"])
@pytest.mark.parametrize("large", [SMALL, LARGE])
def test_the_others_are_searched_and_decided_and_this_one_is_told(run, searcher, large):
    device = Narrow(large)
    session = run(device, searcher=searcher)
    assert decided(session) == {SMALL, LARGE, HELD_OUT} - {large}
    assert session.state == "complete"
    assert not session.trials(INITIAL, large)
    (other,) = {SMALL, LARGE} - {large}
    assert len(session.trials(INITIAL, other)) == CONFIGS
    data = from_session(session)
    assert undecided_lines(data) == (f"{large.key} is undecided: not enough memory for {large}",)
    assert [*json_of(data)["undecided"]] == [large.key]
    assert device.refused == 1, "each attempt at it would take seconds"


@pytest.mark.parametrize("after", [0, 5])
def test_resumed_it_is_searched_on_and_the_others_stay(run, after):
    first = Narrow(LARGE, after=after)
    session = run(first)
    before = session.trials(INITIAL)
    assert len(session.trials(INITIAL, LARGE)) == after
    roomy = Narrow()
    session = run(roomy)
    assert session.trials(INITIAL)[: len(before)] == before
    assert {len(session.trials(INITIAL, one)) for one in (SMALL, LARGE)} == {CONFIGS}
    assert not roomy.tried(SMALL)
    searched = {one.config for one in session.trials(INITIAL, LARGE)[after:]}
    assert searched.isdisjoint(first.tried(LARGE))
    assert decided(session) == {SMALL, LARGE, HELD_OUT}
    assert undecided_lines(from_session(session)) == ()
    ran = len(roomy.ran)
    assert run(roomy).results() == session.results()
    assert len(roomy.ran) == ran, "it is not searched once more"


def test_a_template_is_not_said_to_be_broken_for_what_was_tried_before_memory_ended(run, project):
    template = project / "scale.cu.j2"
    broken = "@{ 'no CUDA' if items == 1 and block == 128 else '' }@\n"
    template.write_text(broken + template.read_text())
    session = run(Narrow(LARGE), searcher="exhaustive")
    (only,) = session.trials(INITIAL, LARGE)
    assert only.status is Status.COMPILE
    assert decided(session) == {SMALL, HELD_OUT}


def test_resumed_without_memory_it_stays_undecided(run):
    run(Narrow(LARGE, after=5))
    session = run(Narrow(LARGE))
    assert decided(session) == {SMALL, HELD_OUT}
    assert len(session.trials(INITIAL, LARGE)) == 5
    assert [*from_session(session).undecided] == [LARGE.key]
    assert decided(run(Narrow())) == {SMALL, LARGE, HELD_OUT}


def test_where_no_workload_has_memory_all_are_undecided(run):
    class Full(Narrow):
        def require_room(self, program):
            self.too_large = program.workload
            super().require_room(program)

    session = run(Full())
    assert not session.results()
    assert session.state == "complete"
    assert {*from_session(session).undecided} == {SMALL.key, LARGE.key}
    assert decided(run(Narrow())) == {SMALL, LARGE, HELD_OUT}


@pytest.mark.parametrize("after", [0, 3, 14])
def test_a_search_that_learns_goes_on_from_what_both_have_found(wide, run, listener, after):
    first = Narrow(LARGE, after=after)
    run(first, searcher="auto")
    assert first.refused
    roomy = Narrow()
    session = run(roomy, searcher="auto")
    trials = session.trials(INITIAL, LARGE)
    assert after <= len(trials) <= max(FURTHER_TRIALS, after) + 3
    assert len({trial.config for trial in trials}) == len(trials)
    assert min(trial.time_us for trial in trials) < 10.3, "within 3 % of the best of 256"
    assert decided(session) == {SMALL, LARGE, HELD_OUT}
    last = {one.workload: one for one in listener.seen[-1].workloads}
    assert last[LARGE].done == last[LARGE].budget == len(trials)
    assert last[SMALL].done == len(session.trials(INITIAL, SMALL))
    ran = len(roomy.ran)
    run(roomy, searcher="auto")
    assert len(roomy.ran) == ran


def test_its_search_is_not_said_to_have_ended_early(wide, run, listener):
    session = run(Narrow(LARGE, after=14), searcher="auto")
    assert LARGE.key not in {one.workload for one in session.events(SearchEnded)}
    last = {one.workload: one for one in listener.seen[-1].workloads}
    assert last[LARGE].done == last[LARGE].budget == 14


def test_a_config_that_finds_no_memory_for_itself_is_a_failed_trial(run):
    class Greedy(SimulatedDevice):
        def run(self, program, **options):
            if program.config and program.config["items"] == 8:
                return Outcome(Status.RESOURCE_LIMIT, "OutOfMemoryError: no room")
            return super().run(program, **options)

    session = run(Greedy(smooth))
    assert decided(session) == {SMALL, LARGE, HELD_OUT}
    failed = [one for one in session.trials(INITIAL) if one.status is Status.RESOURCE_LIMIT]
    assert {one.config["items"] for one in failed} == {8}
    assert not session.events(LeftUndecided)


def test_on_several_gpus_the_others_go_on(run):
    session = run(group_of({"GPU 0": Narrow(LARGE, after=4), "GPU 1": Narrow(LARGE, after=4)}))
    assert decided(session) == {SMALL, HELD_OUT}
    assert len(session.trials(INITIAL, SMALL)) == CONFIGS
    assert len(session.trials(INITIAL, LARGE)) == 4


def test_an_interrupted_run_tries_it_again_as_well(run):
    class Interrupted(Narrow):
        def run(self, program, **options):
            if len(self.tried(LARGE)) == 7:
                raise KeyboardInterrupt
            return super().run(program, **options)

    with pytest.raises(KeyboardInterrupt):
        run(Interrupted(SMALL, after=3))
    session = run(Narrow())
    assert {len(session.trials(INITIAL, one)) for one in (SMALL, LARGE)} == {CONFIGS}
    assert decided(session) == {SMALL, LARGE, HELD_OUT}


def test_where_bits_are_kept_it_is_left_out_from_the_look_at_the_default_on(run):
    class Bits(Narrow):
        capabilities = Narrow.capabilities | {"bits"}

        def run(self, program, **options):
            outcome = super().run(program, **options)
            return replace(outcome, correctness=replace(outcome.correctness, bits="bits"))

        def bits(self, program, seed=None):
            return Outcome(Status.CORRECT, correctness=Correctness(True, ("x3",), bits="bits"))

    session = run(Bits(LARGE), keep_bits=True)
    assert decided(session) == {SMALL, HELD_OUT}
    assert not session.trials(INITIAL, LARGE)
    assert decided(run(Bits(), keep_bits=True)) == {SMALL, LARGE, HELD_OUT}


@pytest.mark.parametrize("in_search", [False, True])
def test_no_energy_is_measured_where_there_is_no_memory(
    make_plan, make_session, compiler, listener, in_search
):
    class Metered(MeteredDevice):
        def require_room(self, program):
            if program.workload == LARGE:
                raise OutOfMemory("not enough memory for N=100000", LARGE.key)

        def run(self, program, *, full_verification=False, **options):
            if in_search and not full_verification:
                self.require_room(program)
            return super().run(program, full_verification=full_verification, **options)

        def energy(self, program, *, seconds):
            self.require_room(program)
            return super().energy(program, seconds=seconds)

    plan = make_plan(objective="energy")
    of = {"compiler": compiler, "listener": listener}
    with make_session(plan) as session:
        device = Metered(smooth, lambda program: 300.0)
        tune(plan, session=session, device=device, meter=device, **of)
        assert decided(session) == {SMALL, HELD_OUT}
        assert session.state == "complete"
        device = MeteredDevice(smooth, lambda program: 300.0)
        tune(plan, session=session, device=device, meter=device, **of)
        assert decided(session) == {SMALL, LARGE, HELD_OUT}


def test_what_was_given_up_in_a_search_is_searched_again_until_its_finals(make_plan, make_session):
    error = OutOfMemory("no room", LARGE.key)
    with make_session(make_plan()) as session:
        skipped = SkippedWorkloads(session)
        skipped.give_up(LARGE, error, INITIAL)
        skipped.give_up(LARGE, error, INITIAL)
        skipped.skip(LARGE, "r1")
        assert len(session.events(LeftUndecided)) == 2
        assert LARGE in skipped
        assert SMALL not in skipped
        later = SkippedWorkloads(session)
        assert LARGE not in later, "a new run tries again"
        names = (INITIAL, "r1", "r2")
        assert [{*unsearched_workloads(session, one)} for one in names] == [{LARGE.key}] * 2 + [
            set()
        ]
        later.give_up(LARGE, error)
        assert not any(unsearched_workloads(session, one) for one in names)
        with later.unless_memory_ends(SMALL, "r1"):
            raise OutOfMemory("no room", SMALL.key)
        assert unsearched_workloads(session, "r1") == {SMALL.key}
        with pytest.raises(ZeroDivisionError), later.unless_memory_ends(SMALL):
            raise ZeroDivisionError
