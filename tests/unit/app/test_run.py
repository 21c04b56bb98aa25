"""The loop on a simulated device, with real compilations."""

from __future__ import annotations

import time

import pytest

from tuner.app.run import tune
from tuner.device.simulated import SimulatedDevice
from tuner.model.errors import KernelError, SpaceError, TemplateError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Status


def flat(program) -> float:
    return 10.0 + program.launches[0].threads / 64


def run(plan, session, compiler, listener, answer=flat, device=None):
    device = device or SimulatedDevice(answer)
    results = tune(plan, session=session, device=device, compiler=compiler, listener=listener)
    return results, device


def test_every_workload_gets_a_result_and_its_kernel(make_plan, make_session, compiler, listener):
    plan = make_plan()
    with make_session(plan) as session:
        results, _ = run(plan, session, compiler, listener)
        assert [result.workload for result in results] == list(plan.config.workloads)
        assert session.state == "complete"
        for result in results:
            assert result.config["block"] == 32, "the smallest block is the fastest here"
            assert "constexpr int kBlock = 32;" in session.variant_path(result.workload).read_text()


def test_exhaustive_search_tries_every_valid_config_once(
    make_plan, make_session, compiler, listener
):
    plan = make_plan()
    with make_session(plan) as session:
        run(plan, session, compiler, listener)
        for workload in plan.tuned:
            trials = session.trials(INITIAL, workload)
            configs = {trial.config for trial in trials}
            assert len(trials) == len(configs) == 19, "5 x 4 less the one over 2048"


def test_the_budget_is_per_workload(make_plan, make_session, compiler, listener):
    plan = make_plan(searcher="random", trials=5)
    with make_session(plan) as session:
        run(plan, session, compiler, listener)
        assert [len(session.trials(INITIAL, w)) for w in plan.tuned] == [5, 5]


def test_a_held_out_workload_is_not_searched_but_compared(
    make_plan, make_session, compiler, listener
):
    plan = make_plan()
    with make_session(plan) as session:
        results, _ = run(plan, session, compiler, listener)
        (held_out,) = (result for result in results if result.workload.held_out)
        assert not session.trials(INITIAL, held_out.workload)
        (comparison,) = (c for c in session.comparisons() if c.workload == Workload.of({"N": 1000}))
        assert held_out.variant in comparison.finalists, "what serves the nearest shape"


def test_the_same_seed_gives_the_same_trials(make_plan, make_session, compiler, listener):
    orders = []
    for name in ("first", "second"):
        plan = make_plan(searcher="optuna", trials=12, seed=7)
        with make_session(plan, name) as session:
            run(plan, session, compiler, listener)
            orders.append([trial.config for trial in session.trials(INITIAL)])
    assert orders[0] == orders[1]


class Interrupting(SimulatedDevice):
    """Press Ctrl-C when a number of programs have run."""

    def __init__(self, answer, after: int) -> None:
        super().__init__(answer)
        self.after = after

    def run(self, program, **options):
        if len(self.ran) == self.after:
            raise KeyboardInterrupt
        return super().run(program, **options)


@pytest.mark.parametrize("after", [1, 7, 20, 40])
@pytest.mark.parametrize("searcher", ["exhaustive", "optuna", "random"])
def test_a_resumed_run_measures_nothing_twice_and_ends_as_an_uninterrupted_one(
    make_plan, make_session, compiler, listener, after, searcher
):
    plan = make_plan(searcher=searcher, trials=15)
    with make_session(plan, "whole") as session:
        whole, undisturbed = run(plan, session, compiler, listener)
        expected = [(t.workload, t.config, t.time_us) for t in session.trials(INITIAL)]
    first = Interrupting(flat, after)
    with make_session(plan, "broken") as session, pytest.raises(KeyboardInterrupt):
        run(plan, session, compiler, listener, device=first)
    with make_session(plan, "broken") as session:
        assert session.state == "interrupted"
        results, second = run(plan, session, compiler, listener)
        found = [(t.workload, t.config, t.time_us) for t in session.trials(INITIAL)]
    assert found == expected
    assert [(r.workload, r.config) for r in results] == [(r.workload, r.config) for r in whole]
    assert len(first.ran) + len(second.ran) == len(undisturbed.ran)


def test_a_search_that_time_has_ended_is_not_taken_up_again(
    make_plan, make_session, compiler, listener, monkeypatch
):
    seconds = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])

    class Slow(Interrupting):
        def run(self, program, **options):
            seconds[0] += 1.0 if len(self.ran) < 7 else 0.0  # 3 baselines, 4 trials
            return super().run(program, **options)

    plan = make_plan(searcher="optuna", time_s=11.0)
    first, second = plan.tuned
    with make_session(plan) as session, pytest.raises(KeyboardInterrupt):
        run(plan, session, compiler, listener, device=Slow(flat, 20))
    with make_session(plan) as session:
        before = session.trials(INITIAL, first)
        assert 4 <= len(before) < 19
        assert session.trials(INITIAL, second)
        results, _ = run(plan, session, compiler, listener, device=Slow(flat, 1000))
        assert session.trials(INITIAL, first) == before
    assert len(results) == 3


def test_failed_trials_are_recorded_with_their_reason(make_plan, make_session, compiler, listener):
    def answer(program):
        return Status.INCORRECT if program.launches[0].threads == 64 else flat(program)

    plan = make_plan()
    with make_session(plan) as session:
        run(plan, session, compiler, listener, answer)
        wrong = [t for t in session.trials(INITIAL) if t.status is Status.INCORRECT]
        assert {trial.config["block"] for trial in wrong} == {64}
        assert all(trial.reason for trial in wrong)


def test_a_finalist_that_fails_all_checks_is_not_reported(
    make_plan, make_session, compiler, listener
):
    class Picky(SimulatedDevice):
        def run(self, program, *, incumbent_us=None, thorough=False):
            outcome = super().run(program, incumbent_us=incumbent_us, thorough=thorough)
            fails = thorough and program.launches[0].threads == 32
            return type(outcome)(Status.INCORRECT, "only with all fills") if fails else outcome

    plan = make_plan()
    with make_session(plan) as session:
        results, _ = run(plan, session, compiler, listener, device=Picky(flat))
        tuned = [result for result in results if not result.workload.held_out]
        assert all(result.config["block"] == 64 for result in tuned)


def test_a_slower_winner_is_not_called_faster(make_plan, make_session, compiler, listener):
    def answer(program):
        return 20.0 if program.launches[0].threads != 128 else 10.0

    plan = make_plan()
    with make_session(plan) as session:
        results, _ = run(plan, session, compiler, listener, answer)
        assert all(result.speedup <= 1.0 for result in results)


def test_limits_reject_before_the_device_is_used(
    project, make_plan, make_session, compiler, listener
):
    space = project / "scale.yaml"
    space.write_text(space.read_text() + "limits: {max_registers: 4}\n")
    plan = make_plan()
    with make_session(plan) as session:
        results, device = run(plan, session, compiler, listener)
        assert results == ()
        assert session.status_counts() == {Status.RESOURCE_LIMIT: 38}
        assert "registers" in session.trials(INITIAL)[0].reason
        assert len(device.ran) == len(plan.config.workloads), "only the baselines ran"


def test_progress_is_told_after_every_trial(make_plan, make_session, compiler, listener):
    plan = make_plan()
    with make_session(plan) as session:
        run(plan, session, compiler, listener)
    assert listener.seen[0].phase == "baseline"
    assert listener.seen[-1].phase == "done"
    last = listener.seen[-1].workloads
    assert [workload.done for workload in last] == [19, 19]
    assert all(workload.speedup and workload.speedup > 1 for workload in last)


def test_no_time_left_still_gives_a_result_per_workload_that_was_reached(
    make_plan, make_session, compiler, listener
):
    plan = make_plan(time_s=0.0)
    with make_session(plan) as session:
        results, _ = run(plan, session, compiler, listener)
        assert results == ()
        assert session.state == "complete"


def test_a_workload_without_a_valid_config_names_the_constraint(
    project, make_plan, make_session, compiler, listener
):
    space = project / "scale.yaml"
    text = space.read_text().replace("block * items <= 2048", "N > 1000 or block > 512")
    space.write_text(text)
    plan = make_plan()
    with make_session(plan) as session, pytest.raises(SpaceError) as caught:
        run(plan, session, compiler, listener)
    assert "N=1000" in caught.value.message
    assert "`N > 1000 or block > 512`" in caught.value.message
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.startswith("constraints"))
    assert caught.value.line == line


def test_a_template_that_never_compiles_shows_the_first_error_at_its_line(
    project, make_plan, make_session, compiler, listener
):
    template = project / "scale.cu.j2"
    template.write_text(template.read_text().replace("2.0f * in[i]", "2.0f * inn[i]"))
    plan = make_plan()
    with make_session(plan) as session, pytest.raises(TemplateError) as caught:
        run(plan, session, compiler, listener)
    assert f"{template}:6" in str(caught.value)
    assert '"inn" is undefined' in str(caught.value)


def test_a_baseline_that_is_wrong_ends_the_run(make_plan, make_session, compiler, listener):
    plan = make_plan()
    with make_session(plan) as session, pytest.raises(KernelError) as caught:
        run(plan, session, compiler, listener, lambda program: Status.INCORRECT)
    assert "the baseline is wrong against its reference" in str(caught.value)
    assert "scale.cu" in str(caught.value)


def test_a_baseline_that_does_not_compile_ends_the_run(
    project, make_plan, make_session, compiler, listener
):
    source = project / "scale.cu"
    source.write_text(source.read_text().replace("2.0f * in[i]", "nothing"))
    plan = make_plan()
    with make_session(plan) as session, pytest.raises(KernelError) as caught:
        run(plan, session, compiler, listener)
    assert 'identifier "nothing" is undefined' in str(caught.value)


def test_a_time_below_what_memory_allows_is_wrong(make_plan, make_session, compiler, listener):
    def answer(program):
        if program.workload.values["N"] == 100000 and program.launches[0].threads == 32:
            return 0.01  # 800 KB in 10 ns
        return flat(program)

    plan = make_plan()
    with make_session(plan) as session:
        run(plan, session, compiler, listener, answer)
        wrong = [t for t in session.trials(INITIAL) if t.status is Status.INCORRECT]
        assert {(t.workload.values["N"], t.config["block"]) for t in wrong} == {(100000, 32)}


def test_a_baseline_below_what_memory_allows_ends_the_run(
    make_plan, make_session, compiler, listener
):
    plan = make_plan()
    with make_session(plan) as session, pytest.raises(KernelError) as caught:
        run(plan, session, compiler, listener, lambda program: 1e-4)
    assert "faster on N=1000 than its `min_bytes`" in caught.value.message


def test_a_config_without_a_launch_is_a_failed_trial(
    project, make_plan, make_session, compiler, listener
):
    space = project / "scale.yaml"
    launch = "block: [block]}]"
    text = space.read_text()
    assert text.count(launch) == 1
    space.write_text(text.replace(launch, 'block: [block], when: "block > 64"}]'))
    plan = make_plan()
    with make_session(plan) as session:
        results, _ = run(plan, session, compiler, listener)
        failed = [t for t in session.trials(INITIAL) if t.status is Status.LAUNCH]
        assert {trial.config["block"] for trial in failed} == {32, 64}
        assert failed[0].reason == "no launch's `when` is true"
        assert all(result.config["block"] == 128 for result in results)
