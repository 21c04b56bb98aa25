"""The search of several workloads: who learns from whom, how it ends, and how it resumes."""

from __future__ import annotations

from collections import Counter
from math import log2

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.app.run import tune
from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.errors import SpaceError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Status, Trial
from tuner.report.data import from_session
from tuner.search.pool import Pool, valid_configs
from tuner.session.events import SearchEnded, SpacePruned
from tuner.space.load import load_definition
from tuner.testing.searchers import make_trial
from tuner.tuning.evaluator import Candidates, evaluator_of
from tuner.tuning.executor import AHEAD
from tuner.tuning.progress import ProgressTracker
from tuner.tuning.run import Run, SkippedWorkloads, pools_of
from tuner.tuning.scheduler import FIRST_TURN_TRIALS
from tuner.tuning.search import (
    FURTHER_TRIALS,
    LEARNT_FROM,
    NEIGHBOURS,
    TRANSFERRED_CONFIGS,
    Search,
    cross_workload_transfer,
    next_to_the_best,
    search_all,
)
from tuner.tuning.verification import Verification

PLAIN = "  block: [32, 64, 128, 256, 512]\n  items: [1, 2, 4, 8]\n"


@pytest.fixture
def wide(project):
    """Give the kernel more valid configs than are tried whole."""
    space = project / "scale.yaml"
    text = space.read_text()
    assert PLAIN in text
    blocks = ", ".join(str(32 * number) for number in range(1, 33))
    wider = f"  block: [{blocks}]\n  items: [1, 2, 3, 4, 5, 6, 7, 8]\n"
    text = text.replace(PLAIN, wider).replace("block * items <= 2048", "block * items <= 8192")
    space.write_text(text)


def smooth(program) -> float:
    """Take 10 us with 256 threads and 4 items, and more the farther away."""
    threads = program.launches[0].threads
    items = program.config["items"] if program.config else 1
    return 10.0 * (1 + 0.1 * abs(log2(threads / 256)) + 0.1 * abs(log2(items / 4)))


def searched(plan, session, compiler, listener, answer=smooth):
    device = SimulatedDevice(answer)
    tune(plan, session=session, device=device, compiler=compiler, listener=listener)
    return {workload: session.trials(INITIAL, workload) for workload in plan.tuned}


def test_workloads_share_what_they_find(wide, make_plan, make_session, compiler, listener):
    plan = make_plan(searcher="auto")
    with make_session(plan) as session:
        first, second = searched(plan, session, compiler, listener).values()
        best = [min(t.time_us for t in trials) for trials in (first, second)]
        assert max(best) < 10.3, "within 3 % of the best of 256"
        assert len(second) < len(first)
        assert len(first) + len(second) <= 100 + FURTHER_TRIALS
        for trials in (first, second):
            assert len({trial.config for trial in trials}) == len(trials) >= FIRST_TURN_TRIALS


def test_an_early_end_is_noted_and_told(wide, make_plan, make_session, compiler, listener):
    plan = make_plan(searcher="auto", trials=200)
    with make_session(plan) as session:
        found = searched(plan, session, compiler, listener)
        assert all(len(trials) < 200 for trials in found.values()), "nothing is left to find"
        ends = session.events(SearchEnded)
        assert {end.workload for end in ends} == {workload.key for workload in found}
        assert all(end.expected_gain < 0.005 for end in ends)
        assert len(from_session(session).early_ends) == 2
    last = {progress.workload: progress for progress in listener.seen[-1].workloads}
    assert all(last[w].budget == last[w].done == len(trials) for w, trials in found.items())


def test_who_looks_on_for_less_is_not_bound_by_what_the_others_took(
    wide, make_plan, make_session, compiler, listener
):
    taken = []
    for enough in (0.005, 0.0):
        plan = make_plan(searcher="auto", enough=enough)
        with make_session(plan, f"enough-{enough}") as session:
            found = searched(plan, session, compiler, listener)
            taken.append([len(trials) for trials in found.values()])
    assert sum(taken[0]) <= 100 + FURTHER_TRIALS < sum(taken[1])


def test_who_looks_on_for_less_tries_all_that_is_next_to_its_best(
    wide, make_plan, make_session, compiler, listener
):
    def rugged(program) -> float:
        parity = sum(program.config.values()) % 3 if program.config else 0
        return smooth(program) * (1 + 0.02 * parity)

    for enough, looks_around in ((0.001, True), (0.005, False)):
        plan = make_plan(searcher="auto", enough=enough)
        with make_session(plan, f"enough-{enough}") as session:
            found = searched(plan, session, compiler, listener, rugged)
            pools = pools_of(plan, evaluator_of(plan, compiler, SimulatedDevice(rugged)))
            trials = session.trials(INITIAL)
            left = list(next_to_the_best(trials, pools))
            assert bool(left) != looks_around
            if looks_around:
                assert not list(cross_workload_transfer(trials, pools, LEARNT_FROM))
        last = {progress.workload: progress for progress in listener.seen[-1].workloads}
        assert all(last[w].budget == last[w].done == len(one) for w, one in found.items())


def test_what_is_next_to_the_best_is_not_begun_when_the_time_is_over(
    wide, make_plan, make_session, compiler, listener, monkeypatch
):
    before: list[int] = []
    try_all, taken = Search._try_all, Search._take

    def noted(search, wanted, *, extra=False):
        before.extend([len(search._session.trials(INITIAL))] if extra else [])
        return try_all(search, wanted, extra=extra)

    def late(search):
        for one in search._scheduler.searches if before else ():
            one.deadline_s = 0.0
        return taken(search)

    monkeypatch.setattr(Search, "_try_all", noted)
    monkeypatch.setattr(Search, "_take", late)
    plan, device = make_plan(searcher="auto", enough=0.001), SimulatedDevice(smooth)
    with make_session(plan) as session:
        tune(plan, session=session, device=device, compiler=compiler, listener=listener)
        trials = session.trials(INITIAL)
        assert 0 < len(trials) - before[0] <= AHEAD, "what was under way"
        pools = pools_of(plan, evaluator_of(plan, compiler, device))
        left = {workload.key for workload, _ in next_to_the_best(trials, pools)}
        assert left
        assert left <= {one.workload for one in session.events(SearchEnded) if one.late}


def test_what_cannot_run_costs_no_trial(wide, project, make_plan, make_session, compiler, listener):
    template = project / "scale.cu.j2"
    text = template.read_text()
    template.write_text(text + "//% if block > 600\n#error too large\n//% endif\n")
    plan = make_plan(searcher="auto", trials=20)
    with make_session(plan) as session:
        for trials in searched(plan, session, compiler, listener).values():
            refused = [trial for trial in trials if trial.status is Status.COMPILE]
            assert len(trials) - len(refused) <= 20
        assert Counter(t.status for t in session.trials())[Status.CORRECT] > 30


@pytest.mark.parametrize(
    ("changes", "until"), [({"trials": 24}, 20), ({"enough": 0.001}, 20), ({"enough": 0.001}, -3)]
)
def test_the_same_seed_makes_the_same_search_and_resumes(
    wide, make_plan, make_session, compiler, listener, changes, until
):
    plan = make_plan(searcher="auto", seed=5, **changes)
    with make_session(plan, "whole") as session:
        searched(plan, session, compiler, listener)
        whole = [(t.workload, t.config, t.status) for t in session.trials(INITIAL)]
    runs = until if until > 0 else len(whole) + until

    class Interrupting(SimulatedDevice):
        def run(self, program, **options):
            if len(self.ran) == runs:
                raise KeyboardInterrupt
            return super().run(program, **options)

    with make_session(plan, "broken") as session, pytest.raises(KeyboardInterrupt):
        tune(
            plan, session=session, device=Interrupting(smooth), compiler=compiler, listener=listener
        )
    with make_session(plan, "broken") as session:
        searched(plan, session, compiler, listener)
        found = [(t.workload, t.config, t.status) for t in session.trials(INITIAL)]
    assert found == whole


def test_suggestions_are_tried_after_the_default(
    wide, project, make_plan, make_session, compiler, listener
):
    space = project / "scale.yaml"
    space.write_text(space.read_text() + "suggestions: [{block: 992}, {items: 7}]\n")
    plan = make_plan(searcher="auto", trials=12)
    with make_session(plan) as session:
        first = next(iter(searched(plan, session, compiler, listener).values()))
        tried = [(trial.config["block"], trial.config["items"]) for trial in first[:3]]
        assert tried == [(128, 1), (992, 1), (128, 7)]


def test_a_config_far_behind_is_no_finalist_but_for_the_first_three(
    make_plan, make_session, compiler, listener
):
    def answer(program):
        return {32: 10.0, 64: 10.2}.get(program.launches[0].threads, 20.0)

    plan = make_plan(finalists=19)
    with make_session(plan) as session:
        searched(plan, session, compiler, listener, answer)
        blocks = {one.config["block"] for c in session.comparisons() for one in c.finalists}
        assert blocks == {32, 64}

    def alone(program):
        return 10.0 + program.launches[0].threads

    with make_session(plan, "alone") as session:
        searched(plan, session, compiler, listener, alone)
        compared = [c for c in session.comparisons() if not c.workload.held_out]
        assert all(len(c.finalists) >= 3 for c in compared)


@pytest.fixture
def space(project) -> SearchSpace:
    return load_definition(project / "scale.yaml").space


@pytest.fixture
def pool(space) -> Pool:
    return valid_configs(space, {"multiprocessors": 132, "N": 1024})


def workload(size: int) -> Workload:
    return Workload.of({"N": size})


def trial(size: int, config: Config, time_us: float | None) -> Trial:
    return make_trial(config, time_us, workload(size), status=Status.INCORRECT)


def test_the_best_two_of_the_nearest_come_before_the_best_of_the_others(pool) -> None:
    a, b, c, d, e = (pool[index] for index in range(5))
    told = [
        *(trial(1024, config, time_us) for config, time_us in ((a, 3.0), (b, 2.0), (c, 1.0))),
        *(trial(1 << 20, config, time_us) for config, time_us in ((d, 9.0), (e, 8.0))),
    ]
    found = list(cross_workload_transfer(told, {workload(2048): pool}, TRANSFERRED_CONFIGS))
    assert found == [(workload(2048), config) for config in (c, b, e)]
    assert list(cross_workload_transfer(told, {workload(2048): pool}, 1)) == found[:1]


def test_only_what_won_elsewhere_is_valid_here_and_was_not_tried_is_named(space, pool) -> None:
    a, b = pool[0], pool[1]
    few = pool.restricted([a])
    told = [trial(1024, a, 1.0), trial(1024, b, 2.0), trial(2048, a, 5.0)]
    assert list(cross_workload_transfer(told, {workload(2048): few}, 3)) == []
    assert list(cross_workload_transfer(told[:2], {workload(2048): few}, 3)) == [
        (workload(2048), a)
    ]
    assert list(cross_workload_transfer(told[:1], {workload(1024): pool}, 3)) == []
    assert list(cross_workload_transfer([trial(1024, a, None)], {workload(2048): pool}, 3)) == []


def test_next_to_the_best_are_the_untried_that_differ_from_it_in_one_parameter(pool) -> None:
    near = [pool[int(index)] for index in pool.neighbours(4)]
    told = [trial(1024, near[0], None), trial(1024, pool[4], 1.0)]
    pools = {workload(1024): pool, workload(2048): pool}
    found = list(next_to_the_best(told, pools))
    assert len(found) == len(near) - 1
    assert set(found) == {(workload(1024), one) for one in near[1:]}
    assert list(next_to_the_best([trial(1024, pool[4], None)], pools)) == []


def test_the_fastest_three_have_their_neighbours_tried_each_once() -> None:
    parameters = (Parameter("a", (1, 2)), Parameter("b", tuple(range(9))))
    whole = Pool.of(parameters, ({"a": a, "b": b} for a in (1, 2) for b in range(9)))
    some = [Config.of({"a": a, "b": b}) for a, b in ((1, 0), (1, 3), (2, 8), (1, 7))]
    told = [trial(1024, one, us) for us, one in enumerate(some[:3], start=1)]
    found = [one for _, one in next_to_the_best(told, {workload(1024): whole})]
    assert len(found) == len(set(found)) == len(whole) - len(told)
    told = [trial(1024, one, us) for us, one in enumerate([*some[:2], some[3], some[2]], start=1)]
    found = [one for _, one in next_to_the_best(told, {workload(1024): whole})]
    assert {one["b"] for one in found if one["a"] == 2} == {0, 3, 7}


def test_of_many_values_only_the_nearest_are_next_to_the_best() -> None:
    parameters = (Parameter("items", tuple(range(1, 1001))), Parameter("block", (64, 128)))
    whole = Pool.of(
        parameters, ({"items": i, "block": b} for i in range(1, 1001) for b in (64, 128))
    )
    best = Config.of({"items": 500, "block": 64})
    found = list(next_to_the_best([trial(1024, best, 1.0)], {workload(1024): whole}))
    assert len(found) == NEIGHBOURS
    assert {config["items"] for _, config in found} == {*range(485, 515)} - {0}
    assert (workload(1024), Config.of({"items": 500, "block": 128})) in found


def test_the_nearest_of_what_is_tied_and_of_what_is_not_are_as_near() -> None:
    parameters = tuple(Parameter(name, tuple(range(100))) for name in ("free", "warps", "down"))
    rows = ({"free": i, "warps": k, "down": k} for i in range(100) for k in range(100))
    best = Config.of({"free": 50, "warps": 50, "down": 50})
    pools = {workload(1024): Pool.of(parameters, rows)}
    found = [config for _, config in next_to_the_best([trial(1024, best, 1.0)], pools)]
    assert {config["free"] for config in found} == {*range(42, 59)}
    assert {(config["warps"], config["down"]) for config in found} == {
        (k, k) for k in range(43, 58)
    }


@pytest.fixture
def pruned(project):
    """Think blocks of under 128 slow, and more than 2 items on the small workload."""
    space = project / "scale.yaml"
    space.write_text(f"{space.read_text()}prune: [block >= 128, N > 9999 or items <= 2]\n")


def test_what_prune_leaves_out_is_not_tried_and_counted(
    pruned, make_plan, make_session, compiler, listener
):
    plan = make_plan()
    with make_session(plan) as session:
        found = searched(plan, session, compiler, listener)
        assert [len(trials) for trials in found.values()] == [6, 11]
        assert all(t.config["block"] >= 128 for trials in found.values() for t in trials)
        counts = [(one.valid, one.searched) for one in session.events(SpacePruned)]
        assert counts == [(19, 6), (19, 11)]
        assert len(from_session(session).pruned) == 2


def test_a_suggestion_that_prune_leaves_out_is_tried(
    pruned, project, make_plan, make_session, compiler, listener
):
    space = project / "scale.yaml"
    space.write_text(f"{space.read_text()}suggestions: [{{block: 32}}, {{items: 8}}]\n")
    plan = make_plan()
    with make_session(plan) as session:
        small, large = searched(plan, session, compiler, listener).values()
    assert [t.config["items"] for t in small if t.config["block"] == 32] == [1]
    assert {t.status for t in (*small, *large)} == {Status.CORRECT}
    assert not [t for t in small if t.config["items"] == 8], "slow on this workload"
    assert [t for t in large if t.config["items"] == 8]


def test_a_config_of_a_past_run_is_tried_where_prune_leaves_it_out(
    pruned, make_plan, make_session, compiler, listener
):
    plan = make_plan(searcher="random", trials=4)
    slow, invalid = (Config.of({"block": block, "items": 8}) for block in (64, 512))
    with make_session(plan) as session:
        candidates = Candidates(plan, compiler, SimulatedDevice(smooth))
        warm = dict.fromkeys(plan.tuned, (invalid, slow))
        session.add_candidate(plan.candidate, plan.template.text, "")
        tracker = ProgressTracker(plan, session, "simulated", listener)
        of = pools_of(plan, candidates.evaluator(INITIAL)), tracker
        skipped, verification = SkippedWorkloads(session), Verification(plan, session, candidates)
        search_all(Run(plan, session, candidates, *of, verification, skipped), warm=warm)
        for workload in plan.tuned:
            tried = {trial.config for trial in session.trials(INITIAL, workload)}
            assert slow in tried
            assert invalid not in tried


def test_what_leaves_a_workload_without_a_config_is_named(project, make_plan, compiler):
    space = project / "scale.yaml"
    space.write_text(f"{space.read_text()}prune: [N > 9999]\n")
    plan = make_plan()
    with pytest.raises(SpaceError) as caught:
        pools_of(plan, evaluator_of(plan, compiler, SimulatedDevice(smooth)))
    assert "every config is left out as slow for workload N=1000: prune `N > 9999`" in str(
        caught.value
    )
    assert "--no-prune" in str(caught.value)
