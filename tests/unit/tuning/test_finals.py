"""Peers in the finals: verified once, compared in the same rounds, and nobody else's trouble."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.app.run import tune
from tuner.device.base import Outcome
from tuner.model.config import Config
from tuner.model.errors import DeviceError, KernelError, OutOfMemory
from tuner.model.kernel import Workload
from tuner.model.statistics import LEAST_US
from tuner.model.trial import INITIAL, Measurement, Status, Trial, Variant, fastest
from tuner.report.data import from_session
from tuner.report.sections.search import undecided_lines
from tuner.report.terminal import json_of
from tuner.tuning.finalists import FinalistSelection, Raced, contenders, worth_comparing

ALL = ("fast", "slow", "absent", "wrong")
SMALL = Workload.of({"N": 1000})


class WithPeers(SimulatedDevice):
    """Times kernels by their blocks and peers by name; `breaks` together, `spoiled` afterwards."""

    def __init__(self, *, breaks: tuple[str, ...] = (), spoiled: tuple[str, ...] = ()) -> None:
        super().__init__(self.time_of)
        self.breaks, self.spoiled = breaks, spoiled
        self.verified: list[tuple[str, str]] = []
        self.compared: list[list[str]] = []

    def time_of(self, program):
        if program.peer:
            return {"fast": 5.0, "slow": 50.0, "absent": Status.NOT_RECORDED}.get(
                program.peer, Status.INCORRECT
            )
        return 10.0 + program.launches[0].threads / 64

    def verify(self, program):
        if program.peer:
            self.verified.append((program.peer, program.workload.key))
        if program.peer == "absent":
            return Outcome(Status.NOT_RECORDED, "No module named 'absent'")
        return super().verify(program)

    def run(self, program, **options):
        assert not program.peer or not options, "peers are not timed by themselves"
        return super().run(program, **options)

    def compare(self, programs, *, rounds):
        names = [program.peer for program in programs if program.peer]
        self.compared.append(names)
        if set(names) & set(self.breaks):
            raise DeviceError("a verified program failed when timed again: no answer within 9 s")
        faults = ["out[0] is 0" if p.peer and p.peer in self.spoiled else "" for p in programs]
        return replace(super().compare(programs, rounds=rounds), faults=tuple(faults))


@pytest.fixture
def run(make_plan, make_session, compiler, listener):
    """Tune on a device with peers; returns what the session then holds."""

    def run(device, peers=ALL, *name):
        plan = make_plan(peers=peers)
        with make_session(plan, *name) as session:
            tune(plan, session=session, device=device, compiler=compiler, listener=listener)
            return session.results(), session.peers(), session.comparisons()

    return run


def statuses(peers) -> dict[str, set[Status]]:
    return {name: {one.status for one in peers if one.name == name} for name in ALL}


def test_the_right_ones_are_compared_on_every_workload(run):
    device = WithPeers()
    results, peers, comparisons = run(device)
    assert len(comparisons) == len(results) == 3, "the held-out workload too"
    for comparison in comparisons:
        assert comparison.peers == ("fast", "slow")
        columns = {name: comparison.column(name) for name in comparison.peers}
        assert {row[columns["fast"]] for row in comparison.rounds} == {5.0}
        assert {row[columns["slow"]] for row in comparison.rounds} == {50.0}
        assert len(comparison.rounds[0]) == 1 + len(comparison.finalists) + 2
    assert statuses(peers) == {
        "fast": {Status.CORRECT},
        "slow": {Status.CORRECT},
        "absent": {Status.NOT_RECORDED},
        "wrong": {Status.INCORRECT},
    }
    assert next(one.reason for one in peers if one.name == "absent") == "No module named 'absent'"


def test_they_change_no_result(run):
    with_peers, _, _ = run(WithPeers())
    device = WithPeers()
    alone, peers, comparisons = run(device, (), "without")
    assert (len(alone), peers, device.verified) == (3, [], [])
    assert {one.peers for one in comparisons} == {()}
    assert [(r.variant, r.tuned_us) for r in alone] == [(r.variant, r.tuned_us) for r in with_peers]
    assert {(one.alone_us, one.surroundings) for one in with_peers} == {(None, "")}
    assert {one.alone_us for one in comparisons} == {()}, "there are no neighbours"


def test_a_resumed_run_repeats_nothing(run):
    device = WithPeers()
    first = run(device)
    verified = list(device.verified)
    assert len(verified) == len(set(verified)) == 4 * 3
    assert run(device) == first
    assert device.verified == verified


def test_one_that_fails_among_others_costs_only_itself(run):
    device = WithPeers(breaks=("slow",))
    results, peers, comparisons = run(device)
    assert len(results) == 3
    assert {one.peers for one in comparisons} == {("fast",)}
    assert statuses(peers)["slow"] == {Status.LAUNCH}
    assert "no answer within 9 s" in next(one.reason for one in peers if one.name == "slow")


class TooMany(WithPeers):
    def compare(self, programs, *, rounds):
        if sum(bool(program.peer) for program in programs) > 1:
            raise DeviceError("not enough memory for N=1000")
        return super().compare(programs, rounds=rounds)


def test_those_that_fail_only_together_leave_the_finals_alone(run):
    results, peers, comparisons = run(TooMany())
    assert len(results) == 3
    assert {one.peers for one in comparisons} == {()}
    assert {one.reason for one in peers if one.name == "fast"} == {"not enough memory for N=1000"}


class Failing(WithPeers):
    def compare(self, programs, *, rounds):
        raise DeviceError("a verified program failed when timed again: launch")


def test_they_are_not_blamed_for_a_finalist(make_plan, make_session, compiler, listener):
    plan = make_plan(peers=("fast",))
    device = WithPeers()
    failing = Failing()
    # Alone each peer works: it is the finalist that does not.
    failing.compare = lambda programs, rounds: (
        device.compare(programs, rounds=rounds)
        if len(programs) == 2 and programs[1].peer
        else Failing.compare(failing, programs, rounds=rounds)
    )
    with make_session(plan) as session:
        with pytest.raises(DeviceError, match="failed when timed again: launch"):
            tune(plan, session=session, device=failing, compiler=compiler, listener=listener)
        assert {one.status for one in session.peers()} == {Status.CORRECT}


def test_one_whose_results_are_wrong_after_the_rounds_loses_its_column(run):
    results, peers, comparisons = run(WithPeers(spoiled=("fast",)))
    assert len(results) == 3
    assert {one.peers for one in comparisons} == {("slow",)}
    assert {len(one.rounds[0]) - len(one.finalists) for one in comparisons} == {2}
    assert statuses(peers)["fast"] == {Status.INCORRECT}


def test_a_device_that_cannot_verify_one_says_why(run):
    class Refusing(WithPeers):
        def verify(self, program):
            if program.peer == "slow":
                raise DeviceError("not enough memory for N=1000")
            return super().verify(program)

    _, peers, _ = run(Refusing())
    slow = next(one for one in peers if one.name == "slow")
    assert (slow.status, slow.reason) == (Status.LAUNCH, "not enough memory for N=1000")


class Small(WithPeers):
    """Has memory for so many programs of a comparison or a race; of some workloads for none."""

    def __init__(self, most: int, *, too_large: str = "") -> None:
        super().__init__()
        self._most, self._too_large = most, too_large
        self.refused = 0

    def _require_room(self, programs):
        if len(programs) > self._most or programs[0].workload.key == self._too_large:
            self.refused += 1
            key = programs[0].workload.key
            raise OutOfMemory("a verified program failed when timed again: 27 GB on the GPU", key)

    def compare(self, programs, *, rounds):
        self._require_room(programs)
        return super().compare(programs, rounds=rounds)

    def rank(self, programs, *, rounds):
        self._require_room(programs)
        return WithPeers.compare(self, programs, rounds=rounds).times_us


def test_where_memory_ends_fewer_are_compared_and_peers_stay(run):
    usual, _, whole = run(WithPeers(), ("fast",), "usual")
    device = Small(4)
    results, peers, comparisons = run(device, ("fast",))
    assert max(len(one.finalists) for one in whole) > 2
    assert max(len(one.finalists) for one in comparisons) == 2
    assert device.refused
    assert [one.tuned_us for one in results] == [one.tuned_us for one in usual]
    assert {one.peers for one in comparisons} == {("fast",)}
    assert statuses(peers)["fast"] == {Status.CORRECT}


def test_where_those_that_find_room_are_wrong_the_others_are_compared(
    make_plan, make_session, compiler, listener
):
    wrong: set[Config] = set()

    class FirstAreWrong(Small):
        """All are equally fast, and those that are compared first are wrong after their rounds."""

        def time_of(self, program):
            return 10.0

        def compare(self, programs, *, rounds):
            compared = super().compare(programs, rounds=rounds)
            if not wrong:
                wrong.update(one.config for one in programs[1:])
            faults = ["out[0] is 0" if one.config in wrong else "" for one in programs]
            return replace(compared, faults=tuple(faults))

        def rank(self, programs, *, rounds):
            return SimulatedDevice.compare(self, programs, rounds=rounds).times_us

    plan = make_plan(trials=4)
    with make_session(plan) as session:
        device = FirstAreWrong(3)
        tune(plan, session=session, device=device, compiler=compiler, listener=listener)
        decided = {result.workload: result.config for result in session.results()}
    assert device.refused
    assert len(wrong) == 2
    assert decided.keys() == {*plan.config.workloads}
    assert not wrong.intersection(decided.values())


def test_a_workload_without_memory_for_its_finals_costs_no_other(
    make_plan, make_session, compiler, listener
):
    plan = make_plan(peers=("fast",))
    large = plan.tuned[0].key
    with make_session(plan) as session:
        device = Small(9, too_large=large)
        tune(plan, session=session, device=device, compiler=compiler, listener=listener)
        decided = {one.workload.key for one in session.results()}
        assert decided == {one.key for one in plan.config.workloads} - {large}
        assert session.state == "complete"
        (line,) = undecided_lines(from_session(session))
        assert line.startswith(f"{large} is undecided: a verified program failed")
        assert "27 GB on the GPU" in json_of(from_session(session))["undecided"][large]
        # Resumed where there is room.
        tune(plan, session=session, device=WithPeers(), compiler=compiler, listener=listener)
        assert len(session.results()) == len(plan.config.workloads)
        assert {one.peers for one in session.comparisons()} == {("fast",)}
        assert undecided_lines(from_session(session)) == ()
        assert "undecided" not in json_of(from_session(session))


def test_what_is_compared_however_fast_it_is_stays_where_a_race_finds_no_room_for_all(
    run, monkeypatch
):
    besides, slowest = FinalistSelection._besides, {}

    def with_the_slowest(self, workload):
        slowest[workload] = self._session.fastest(workload=workload)[-1].variant
        return [*besides(self, workload), slowest[workload]]

    monkeypatch.setattr(FinalistSelection, "_besides", with_the_slowest)
    raced: list[int] = []

    class NarrowRace(Small):
        def compare(self, programs, *, rounds):
            return WithPeers.compare(self, programs, rounds=rounds)

        def rank(self, programs, *, rounds):
            found = super().rank(programs, rounds=rounds)
            raced.append(len(programs))
            return found

    _, _, comparisons = run(NarrowRace(4), ())
    assert 1 < max(raced) <= 4
    for one in comparisons:
        assert slowest.get(one.workload, one.finalists[0]) in one.finalists


class BetweenNeighbours(WithPeers):
    """Without neighbours everything takes 3 us longer."""

    def compare(self, programs, *, rounds):
        found = super().compare(programs, rounds=rounds)
        alone = (time_us + 3.0 for time_us in found.times_us[0])
        return replace(found, alone_us=tuple(alone))


def test_times_alone_are_kept_beside_the_costs_they_do_not_decide(run):
    results, _, comparisons = run(BetweenNeighbours())
    for result, comparison in zip(results, comparisons, strict=True):
        assert len(comparison.alone_us) == len(comparison.rounds[0])
        assert result.alone_us == pytest.approx(result.tuned_us + 3.0)
        assert result.alone_baseline_us == pytest.approx(result.baseline_us + 3.0)


class BelowTheClamp(WithPeers):
    """On one workload programs of one kind cost what a difference is clamped to."""

    def __init__(self, unmeasured: str = "") -> None:
        super().__init__()
        self.unmeasured = unmeasured

    def compare(self, programs, *, rounds):
        found = super().compare(programs, rounds=rounds)
        clamped = [
            programs[0].workload == SMALL
            and self.unmeasured == (one.peer or ("a finalist" if one.config else "the baseline"))
            for one in programs
        ]
        rows = [
            tuple(LEAST_US if low else us for us, low in zip(row, clamped, strict=True))
            for row in found.times_us
        ]
        # A round that is told is an extreme: the cost leaves it out.
        return replace(found, times_us=(found.times_us[0], *rows[1:]))


@pytest.mark.parametrize("unmeasured", ["the baseline", "a finalist", "fast"])
def test_where_a_cost_is_at_the_clamp_nothing_was_measured(
    make_plan, make_session, compiler, listener, project, unmeasured
):
    around = "surroundings: {decode: {chain: [{before: [{stream: N, writes: in}]}]}}\n"
    with (project / "scale.yaml").open("a") as space:
        space.write(around)
    plan = make_plan(peers=("fast",))
    others = {one.key for one in plan.config.workloads} - {SMALL.key}
    of = {"compiler": compiler, "listener": listener}
    with make_session(plan) as session:
        tune(plan, session=session, device=BelowTheClamp(unmeasured), **of)
        assert {one.workload.key for one in session.results()} == others
        assert {one.workload.key for one in session.comparisons()} == others
        (line,) = undecided_lines(from_session(session))
        assert line.startswith(f"{SMALL.key} is undecided: not measured: {unmeasured}")
        # Measured again it is as any other.
        tune(plan, session=session, device=BelowTheClamp(), **of)
        assert len(session.results()) == len(plan.config.workloads)


def test_a_cost_without_neighbours_may_be_as_small(run):
    results, _, _ = run(BelowTheClamp("the baseline"))
    assert min(one.baseline_us for one in results) == pytest.approx(LEAST_US)


class Misleading(SimulatedDevice):
    """Gives its search times that are all but equal; in the same rounds a block of 256 is best."""

    ranked: int = 0

    def __init__(self) -> None:
        super().__init__(lambda program: 10.0 + program.launches[0].threads * 1e-4)

    def rank(self, programs, *, rounds):
        self.ranked += 1
        return [[1.0 + abs(program.launches[0].block[0] - 256) for program in programs]] * rounds


def blocks_of(comparisons) -> list[list[int]]:
    """Name the finalists of tuned workloads by their blocks."""
    tuned = [one for one in comparisons if not one.workload.held_out]
    return [[dict(v.config)["block"] for v in one.finalists] for one in tuned]


def test_chance_does_not_choose_among_many_that_are_near(run):
    device = Misleading()
    _, _, comparisons = run(device, ())
    tuned = [one for one in comparisons if not one.workload.held_out]
    assert device.ranked == len(tuned)
    for one, blocks in zip(tuned, blocks_of(comparisons), strict=True):
        assert blocks.count(256) == 4
        assert len(blocks) <= 5, "who is proved slower is out, but one that serves both workloads"
        assert one.raced_us == tuple(1.0 + abs(block - 256) for block in blocks), "it is kept"


def test_a_resumed_run_ranks_nothing_again(run):
    first = run(Misleading(), ())
    again = Misleading()
    assert run(again, ()) == first
    assert again.ranked == 0


def test_where_ranking_fails_the_order_of_the_search_stands(run):
    class Failing(Misleading):
        def rank(self, programs, *, rounds):
            raise DeviceError("a verified program failed when timed again")

    _, _, comparisons = run(Failing(), ())
    assert all(len(one.finalists) <= 6 for one in comparisons)


def test_where_all_that_are_near_fail_those_behind_are_compared(run):
    class BestIsWrong(Misleading):
        """Finds the two best wrong once they have been compared."""

        def compare(self, programs, *, rounds):
            faults = [one.launches[0].block[0] in wrong for one in programs]
            compared = super().compare(programs, rounds=rounds)
            return replace(compared, faults=tuple("out[0] is 0" if f else "" for f in faults))

    _, _, comparisons = run(Misleading(), (), "right")
    wrong = {block for found in blocks_of(comparisons) for block in found[:2]}
    _, _, comparisons = run(BestIsWrong(), (), "wrong")
    assert all(blocks_of(comparisons)), "each workload has finalists"
    assert not wrong & {block for found in blocks_of(comparisons) for block in found}


@pytest.mark.parametrize("raises", [False, True])
def test_a_finalist_beside_whom_the_baseline_fails_is_out(run, raises):
    class Harming(Misleading):
        """Has a config that spoils what others leave, or ends the process of all."""

        def compare(self, programs, *, rounds):
            found = super().compare(programs, rounds=rounds)
            harmed = any(one.launches[0].block[0] in harmful for one in programs[1:])
            if harmed and raises:
                raise DeviceError("a verified program failed when timed again: launch")
            return replace(found, faults=("out[0] is 0" if harmed else "", *programs[1:0]))

    _, _, comparisons = run(Misleading(), (), "right")
    harmful = {blocks_of(comparisons)[0][0]}
    _, _, comparisons = run(Harming(), (), "harmed")
    assert all(blocks_of(comparisons)), "each workload has finalists"
    assert not harmful & {block for found in blocks_of(comparisons) for block in found}


def test_a_baseline_that_is_wrong_alone_ends_the_run(run):
    class Wrong(Misleading):
        def compare(self, programs, *, rounds):
            return replace(super().compare(programs, rounds=rounds), faults=("out[0] is 0",))

    with pytest.raises(KernelError, match=r"the baseline is wrong on N=.*: out"):
        run(Wrong(), ())


def test_what_is_worth_comparing():
    names = [Variant(INITIAL, Config.of({"block": k})) for k in range(5)]

    def kept(*raced: Raced | None) -> list[int]:
        ranking = dict(zip(names, raced, strict=False))
        return [names.index(one) for one in worth_comparing(ranking, 0.02)]

    best, near, far = Raced(10.0, False), Raced(10.1, True), Raced(10.3, True)
    assert kept(best, near, far, far) == [0, 1]
    assert kept(best, far, far) == [0, 1], "a second one in any case"
    assert kept(best, near, Raced(10.3, False), far) == [0, 1, 2], "nothing is proved of it"
    assert kept(best, near, far, None) == [0, 1, 3], "nobody raced it"
    assert kept(None, None, None) == [0, 1, 2]


def measured(block: int, *times_us: float) -> Trial:
    what = (INITIAL, SMALL, Config.of({"block": block}), Status.CORRECT)
    return Trial(*what, measurement=Measurement(times_us, 1, 1))


def test_whoever_may_be_the_best_runs_on():
    sharp, blurred = (1.0, 1.001) * 8, (1.0, 1.4) * 8
    best = measured(0, *sharp)
    near = [measured(k, *(us * 1.03 for us in sharp)) for k in (1, 2)]
    wide = measured(3, *(us * 0.95 for us in blurred))
    far = [measured(k, *(us * 1.3 for us in sharp)) for k in (4, 5)]

    def blocks(*trials: Trial) -> list[int]:
        return [dict(one.config)["block"] for one in contenders(fastest(trials), 16)]

    assert blocks(best, *near, wide, *far) == [0, 1, 2, 3], "one by its interval"
    assert blocks(best, *far) == [0, 4, 5], "three in any case: the best may fail a check"
    lucky = measured(9, *(us * 0.85 for us in sharp))
    assert blocks(lucky, best, *near, *far) == [9, 0, 1, 2], "a single time says little"
    assert len(contenders(fastest([best, *near, wide]), 2)) == 2
    assert contenders([], 16) == []
