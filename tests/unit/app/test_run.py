"""The loop on a simulated device, with real compilations."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import NamedTuple

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.analysis.sass import find_nvdisasm
from tuner.app import run
from tuner.app.run import tune
from tuner.device.base import BITS_DIFFER, DIFFERS, Outcome
from tuner.model.errors import KernelError, SpaceError, TemplateError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Result, Status, Trial
from tuner.search.factory import EXHAUSTIVE_BELOW
from tuner.session.events import MachineCodeCompared
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates
from tuner.tuning.run import pools_of


def flat(program) -> float:
    return 10.0 + program.launches[0].threads / 64


class Ran(NamedTuple):
    """A run that is over; its session is closed, and can still be asked."""

    plan: Plan
    session: Session
    results: tuple[Result, ...]
    device: SimulatedDevice

    @property
    def trials(self) -> list[Trial]:
        return self.session.trials(INITIAL)

    def of(self, status: Status) -> list[Trial]:
        return [trial for trial in self.trials if trial.status is status]


@pytest.fixture
def ran(make_plan, make_session, compiler, listener):
    """Run the project's plan with changes, in a session of a name, on a device or its answer."""

    def run(answer=flat, name="session", device=None, **changes) -> Ran:
        plan, device = make_plan(**changes), device or SimulatedDevice(answer)
        with make_session(plan, name) as session:
            run = {"device": device, "compiler": compiler, "listener": listener}
            return Ran(plan, session, tune(plan, session=session, **run), device)

    return run


@pytest.mark.skipif(find_nvdisasm() is None, reason="there is no disassembler")
def test_the_machine_code_of_the_winner_of_most_workloads_is_compared_once(ran):
    _, session, results, _ = ran()
    (compared,) = session.events(MachineCodeCompared)
    winners = [one for one in results if not one.baseline_wins]
    assert compared.config in [dict(one.config) for one in winners]
    assert min(compared.instructions) > 10


def test_every_workload_gets_a_result_and_its_kernel(ran, listener):
    plan, session, results, _ = ran()
    assert [result.workload for result in results] == list(plan.config.workloads)
    assert session.state == "complete"
    for result in results:
        assert result.config["block"] == 32, "the smallest block is the fastest here"
        assert "constexpr int kBlock = 32;" in session.variant_path(result.workload).read_text()
    for workload in plan.tuned:
        trials = session.trials(INITIAL, workload)
        configs = {trial.config for trial in trials}
        assert len(trials) == len(configs) == 19, "5 x 4 less the one over 2048"
    (held_out,) = (result for result in results if result.workload.held_out)
    assert not session.trials(INITIAL, held_out.workload), "it is not searched but compared"
    (comparison,) = (c for c in session.comparisons() if c.workload == Workload.of({"N": 1000}))
    assert held_out.variant in comparison.finalists, "what serves the nearest shape"
    assert (listener.seen[0].phase, listener.seen[-1].phase) == ("baseline", "done")
    last = listener.seen[-1].workloads
    assert [workload.done for workload in last] == [19, 19]
    assert all(workload.speedup and workload.speedup > 1 for workload in last)


def test_the_budget_is_per_workload(ran):
    plan, session, *_ = ran(searcher="random", trials=5)
    assert [len(session.trials(INITIAL, w)) for w in plan.tuned] == [5, 5]


def test_the_same_seed_gives_the_same_trials(ran):
    first, second = (ran(name=n, searcher="optuna", trials=12, seed=7) for n in ("a", "b"))
    assert [t.config for t in first.trials] == [t.config for t in second.trials]


class Interrupting(SimulatedDevice):
    """Press Ctrl-C when a number of programs have run."""

    def __init__(self, answer, after: int) -> None:
        super().__init__(answer)
        self.after = after

    def run(self, program, **options):
        if len(self.ran) == self.after:
            raise KeyboardInterrupt
        return super().run(program, **options)


@pytest.mark.parametrize("after", [1, 7, 20, 36])
@pytest.mark.parametrize("searcher", ["exhaustive", "optuna", "random"])
def test_a_resumed_run_measures_nothing_twice_and_ends_as_an_uninterrupted_one(
    ran, make_plan, make_session, after, searcher
):
    changes = {"searcher": searcher, "trials": 15}
    whole, first = ran(name="whole", **changes), Interrupting(flat, after)
    with pytest.raises(KeyboardInterrupt):
        ran(device=first, **changes)
    with make_session(make_plan(**changes)) as session:
        assert session.state == "interrupted"
    again = ran(**changes)
    assert [(t.workload, t.config, t.time_us) for t in again.trials] == [
        (t.workload, t.config, t.time_us) for t in whole.trials
    ]
    assert [(r.workload, r.config) for r in again.results] == [
        (r.workload, r.config) for r in whole.results
    ]
    assert len(first.ran) + len(again.device.ran) == len(whole.device.ran)


def test_a_search_that_time_has_ended_is_not_taken_up_again(
    ran, make_plan, make_session, monkeypatch
):
    seconds = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])

    class Slow(Interrupting):
        def run(self, program, **options):
            seconds[0] += 1.0 if len(self.ran) < 7 else 0.0  # 3 baselines, 4 trials
            return super().run(program, **options)

    changes = {"searcher": "optuna", "time_s": 11.0}
    with pytest.raises(KeyboardInterrupt):
        ran(device=Slow(flat, 20), **changes)
    first, second = make_plan(**changes).tuned
    with make_session(make_plan(**changes)) as session:
        before = session.trials(INITIAL, first)
        assert session.trials(INITIAL, second)
    assert 4 <= len(before) < 19
    again = ran(device=Slow(flat, 1000), **changes)
    assert again.session.trials(INITIAL, first) == before
    assert len(again.results) == 3


def test_failed_trials_are_recorded_with_their_reason(ran):
    wrong = ran(
        lambda program: Status.INCORRECT if program.launches[0].threads == 64 else flat(program)
    ).of(Status.INCORRECT)
    assert {trial.config["block"] for trial in wrong} == {64}
    assert all(trial.reason for trial in wrong)


def test_a_finalist_that_fails_all_checks_is_not_reported(ran):
    class Picky(SimulatedDevice):
        def run(self, program, *, incumbent_us=None, full_verification=False):
            made = super().run(
                program, incumbent_us=incumbent_us, full_verification=full_verification
            )
            fails = full_verification and program.launches[0].threads == 32
            return type(made)(Status.INCORRECT, "only with all inputs") if fails else made

    results = ran(device=Picky(flat)).results
    assert {one.config["block"] for one in results if not one.workload.held_out} == {64}


def test_a_slower_winner_is_not_called_faster(ran):
    results = ran(lambda program: 20.0 if program.launches[0].threads != 128 else 10.0).results
    assert all(result.speedup <= 1.0 for result in results)


def test_limits_reject_before_the_device_is_used(project, ran):
    space = project / "scale.yaml"
    space.write_text(space.read_text() + "limits: {max_registers: 4}\n")
    plan, session, results, device = ran()
    assert results == ()
    assert Counter(t.status for t in session.trials()) == {Status.RESOURCE_LIMIT: 38}
    assert "registers" in session.trials(INITIAL)[0].reason
    assert len(device.ran) == len(plan.config.workloads), "only the baselines ran"


def test_no_time_left_still_gives_a_result_per_workload_that_was_reached(ran):
    one = ran(time_s=0.0)
    assert (one.results, one.session.state) == ((), "complete")


def test_a_workload_without_a_valid_config_names_the_constraint(project, ran):
    space = project / "scale.yaml"
    text = space.read_text().replace("block * items <= 2048", "N > 1000 or block > 512")
    space.write_text(text)
    with pytest.raises(SpaceError, match="N=1000") as caught:
        ran()
    assert "`N > 1000 or block > 512`" in caught.value.message
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.startswith("constraints"))
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("file", "new", "error", "told"),
    [
        ("scale.cu.j2", "2.0f * inn[i]", TemplateError, ["scale.cu.j2:6", '"inn" is undefined']),
        ("scale.cu", "nothing", KernelError, ['identifier "nothing" is undefined']),
    ],
)
def test_what_never_compiles_ends_the_run_with_the_first_error(
    project, ran, file, new, error, told
):
    path = project / file
    path.write_text(path.read_text().replace("2.0f * in[i]", new))
    with pytest.raises(error) as caught:
        ran()
    assert all(one in str(caught.value) for one in told)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Status.INCORRECT, ["the baseline is wrong against its reference", "scale.cu"]),
        (1e-4, ["faster on N=1000 than its `min_bytes`"]),
    ],
)
def test_a_baseline_that_is_wrong_or_below_what_memory_allows_ends_the_run(ran, answer, told):
    with pytest.raises(KernelError) as caught:
        ran(lambda program: answer)
    assert all(one in str(caught.value) for one in told)


@pytest.mark.parametrize("reason", [f"{BITS_DIFFER} of 'y' in a second run", DIFFERS])
def test_a_baseline_whose_bits_differ_is_told_what_floats_added_in_any_order_need(ran, reason):
    class Unsteady(SimulatedDevice):
        def run(self, program, **how):
            return Outcome(Status.INCORRECT, reason)

    with pytest.raises(KernelError) as caught:
        ran(device=Unsteady(flat))
    assert "write `deterministic: false` for this argument" in str(caught.value)


def test_a_time_below_what_memory_allows_is_wrong(ran):
    def answer(program):
        if program.workload.values["N"] == 100000 and program.launches[0].threads == 32:
            return 0.01  # 800 KB in 10 ns
        return flat(program)

    wrong = ran(answer).of(Status.INCORRECT)
    assert {(t.workload.values["N"], t.config["block"]) for t in wrong} == {(100000, 32)}


def test_a_config_without_a_launch_is_a_failed_trial(project, ran):
    space = project / "scale.yaml"
    launch = "block: [block]}]"
    text = space.read_text()
    assert text.count(launch) == 1
    space.write_text(text.replace(launch, 'block: [block], when: "block > 64"}]'))
    one = ran()
    failed = one.of(Status.LAUNCH)
    assert {trial.config["block"] for trial in failed} == {32, 64}
    assert failed[0].reason == "no launch's `when` is true"
    assert all(result.config["block"] == 128 for result in one.results)


@pytest.mark.parametrize(
    ("several", "changes", "wanted"),
    [
        (False, {"trials": 6}, []),
        (False, {"trials": 9, "rounds": 1}, []),
        (False, {"trials": 10, "rounds": 1}, ["preload_importance"]),
        (False, {"trials": 6, "max_variants": 1}, ["preload_solver"]),
        (True, {"trials": 6}, ["preload_solver"]),
    ],
)
def test_what_a_run_does_not_need_is_not_loaded(
    make_plan, compiler, monkeypatch: pytest.MonkeyPatch, several, changes, wanted
) -> None:
    loaded = []
    for name in ("preload_solver", "preload_importance"):
        monkeypatch.setattr(run, name, lambda name=name: loaded.append(name))
    one = {} if several else {"workloads": (Workload.of({"N": 1000}),)}
    plan = make_plan(searcher="random", **one, **changes)
    candidates = Candidates(plan, compiler, SimulatedDevice(flat))
    run._load_ahead(plan, pools_of(plan, candidates.evaluator(plan.candidate)))
    assert loaded == wanted


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, ("exhaustive", 19, None)),
        ({"trials": 6}, ("exhaustive", 19, 6)),
        ({"rounds": 1}, ("exhaustive", EXHAUSTIVE_BELOW, None)),
    ],
)
def test_the_searcher_s_packages_are_on_their_way_while_the_baseline_is_measured(
    ran, monkeypatch: pytest.MonkeyPatch, changes, wanted
) -> None:
    asked, loading = [], threading.Event()

    def preload(*about) -> None:
        asked.append(about)
        loading.set()

    monkeypatch.setattr(run, "preload", preload)
    monkeypatch.setattr(run, "preload_solver", lambda: None)
    in_time = []

    def answer(program) -> float:
        in_time.append(loading.wait(20.0))
        return flat(program)

    ran(answer, **changes)
    assert in_time[0]
    assert asked == [wanted]
