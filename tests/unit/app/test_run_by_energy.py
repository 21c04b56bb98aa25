"""A whole run by energy on a simulated device: the search goes by time, the choice does not."""

from __future__ import annotations

from tests.support.simulated_device import MeteredDevice
from tuner.app.run import tune
from tuner.device.base import Outcome
from tuner.model.trial import Status
from tuner.report.data import from_session
from tuner.report.html import render_report
from tuner.report.terminal import json_of


def time_us(program) -> float:
    return 10.0 + program.launches[0].threads / 64


def frugal_at_64(program) -> float:
    return {32: 600.0, 64: 420.0}.get(program.launches[0].threads, 500.0)


def run(plan, session, compiler, listener, power=frugal_at_64):
    device = MeteredDevice(time_us, power)
    meter = None if plan.config.objective == "time" else device
    return tune(
        plan, session=session, device=device, compiler=compiler, listener=listener, meter=meter
    ), device


def blocks(results):
    return {r.workload.key: r.config["block"] for r in results}


def test_the_objective_chooses_and_held_out_workloads_inherit(
    make_plan, make_session, compiler, listener
):
    chosen = {}
    for objective in ("time", "energy"):
        plan = make_plan(objective=objective)
        with make_session(plan, objective) as session:
            results, _ = run(plan, session, compiler, listener)
            chosen[objective] = blocks(results)
    assert set(chosen["time"].values()) == {32}
    assert set(chosen["energy"].values()) == {64}
    assert "energy" in {one.phase for one in listener.seen}


def test_the_report_and_the_json_have_the_energy(make_plan, make_session, compiler, listener):
    plan = make_plan(objective="edp")
    with make_session(plan) as session:
        run(plan, session, compiler, listener)
        data = from_session(session, plan.spec)
    assert '<h2 id="energy">Energy</h2>' in render_report(data)
    first = json_of(data)["energy"][0]
    assert first["workload"] == {"N": 1000}
    assert first["energy"]["ratio"] > 1.0
    assert first["programs"][0]["config"] is None


def test_the_baseline_wins_where_every_config_costs_more_though_it_is_faster(
    make_plan, make_session, compiler, listener
):
    first = []

    def power(program):
        first.append(program.source_key)
        return 200.0 if program.source_key == first[0] else 900.0

    plan = make_plan(objective="energy")
    with make_session(plan) as session:
        results, _ = run(plan, session, compiler, listener, power)
    tuned = [result for result in results if not result.workload.held_out]
    assert all(result.speedup > 1.0 and result.baseline_wins for result in tuned)


def test_a_resumed_run_measures_no_energy_again(make_plan, make_session, compiler, listener):
    plan = make_plan(objective="energy")
    with make_session(plan) as session:
        run(plan, session, compiler, listener)
    with make_session(plan) as session:
        results, device = run(plan, session, compiler, listener)
    assert device.metered == []
    assert set(blocks(results).values()) == {64}


def test_where_all_that_cost_least_are_wrong_those_behind_are_compared(
    make_plan, make_session, compiler, listener
):
    class FirstAreWrong(MeteredDevice):
        """Finds the first two configs that it verifies in full wrong."""

        wrong: tuple[object, ...] = ()

        def run(self, program, *, incumbent_us=None, full_verification=False):
            if full_verification and program.config is not None and len(self.wrong) < 2:
                self.wrong = (*self.wrong, program.config)
            if full_verification and program.config in self.wrong:
                return Outcome(Status.INCORRECT, "out[0] is 0")
            return super().run(program, incumbent_us=incumbent_us)

    plan = make_plan(objective="energy", finalists=2)
    device = FirstAreWrong(time_us, frugal_at_64)
    with make_session(plan) as session:
        of = {"session": session, "device": device, "compiler": compiler, "listener": listener}
        results = tune(plan, **of, meter=device)
    assert {result.workload for result in results} == {*plan.config.workloads}
    assert not {result.config for result in results}.intersection(device.wrong)
