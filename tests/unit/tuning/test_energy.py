"""The energy stage: what is measured, and what comes of it on a simulated device."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.support.simulated_device import MeteredDevice
from tuner.model.config import Config
from tuner.model.energy import Account, Consumption, accounts
from tuner.model.errors import InputError, KernelError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, EnergyWindow, Measurement, Status, Trial, Variant
from tuner.tuning.energy import (
    FEWEST_CONFIGS,
    MOST_CONFIGS,
    POWER_MARGIN,
    SEARCH_SHARE,
    EnergyStage,
    can_win,
    most_seconds,
    next_config,
    require_time,
    unlike,
)
from tuner.tuning.evaluator import Candidates
from tuner.tuning.run import Run, SkippedWorkloads
from tuner.tuning.verification import Verification

WORKLOAD = Workload.of({"N": 1000})
IDLE_W = 100.0


def trial(time_us: float, **config) -> Trial:
    measurement = Measurement((time_us,) * 3, 20, 4)
    return Trial(INITIAL, WORKLOAD, Config.of(config), Status.CORRECT, measurement=measurement)


def measured(one: Trial, power_w: float = 500.0) -> Consumption:
    window = EnergyWindow(power_w * 5.0, 5.0, one.time_us)
    return Consumption(one.variant, (window,), (IDLE_W,))


def account(*programs: Consumption) -> Account:
    return Account(WORKLOAD, (IDLE_W,), None, programs)


def choose(timed, known=(), objective="energy"):
    return next_config(timed, account(*map(measured, known)), objective)


def test_the_first_half_are_the_fastest_then_come_those_unlike_them():
    alike = [trial(10.0 + i / 100, block=32, items=1, unroll=i) for i in range(6)]
    other = trial(10.5, block=256, items=8, unroll=0)
    timed = [*alike, other]
    half = MOST_CONFIGS // 2
    for count in range(half):
        assert choose(timed, alike[:count]) is alike[count]
    assert choose(timed, alike[:half]) is other


def test_the_fastest_is_measured_first_and_no_more_than_the_cap():
    timed = [trial(10.0, block=block) for block in range(MOST_CONFIGS + 3)]
    assert choose(timed) is timed[0]
    assert choose([]) is None
    assert choose(timed, timed[: MOST_CONFIGS - 1]) is not None
    assert choose(timed, timed[:MOST_CONFIGS]) is None


@pytest.mark.parametrize(
    ("objective", "slower"),
    [("energy", 1 / (1 - POWER_MARGIN)), ("edp", (1 / (1 - POWER_MARGIN)) ** 0.5)],
)
def test_a_config_too_slow_to_win_at_the_least_power_is_left_out(objective, slower):
    fastest = trial(10.0, block=32)
    known = account(measured(fastest))
    assert can_win(trial(10.0 * slower * 0.99, block=64), known, objective)
    assert not can_win(trial(10.0 * slower * 1.01, block=64), known, objective)


def test_configs_of_two_candidates_differ_in_everything():
    one = Variant(INITIAL, Config.of({"block": 32, "items": 1}))
    assert unlike(one, Variant(INITIAL, Config.of({"block": 32, "items": 2}))) == 1
    assert unlike(one, Variant("r1", Config.of({"block": 32, "items": 1}))) == 3


SMALL, LARGE = Workload.of({"N": 1000}), Workload.of({"N": 100000})


def block_of(program) -> int:
    return program.launches[0].threads


class Board:
    """Keep what is announced; `left` is the time that the run still has."""

    def __init__(self, left: float | None = None) -> None:
        self.notes: list[str] = []
        self.remaining: list[float] = []
        self.left = left

    def announce(self, phase, current=None, note="", *, remaining_s=None):
        assert phase == "energy"
        self.notes += [note] if note else []
        self.remaining.append(remaining_s)

    def left_s(self):
        return self.left


class Stage:
    """A stage over a session in which blocks were timed: the smallest is the fastest."""

    def __init__(self, plan, session, compiler, blocks, power, answer=None, left=None):
        self.session, self.board = session, Board(left)
        self.device = MeteredDevice(answer or self.time_us, power)
        self.candidates = Candidates(plan, compiler, self.device)
        self.verification = Verification(plan, session, self.candidates)
        if not session.candidates():
            session.add_candidate(INITIAL, plan.template.text, "")
            for workload in plan.tuned:
                for block in blocks:
                    session.record(timed(workload, block))
        self.plan = plan

    @staticmethod
    def time_us(program) -> float:
        return us_of(block_of(program))

    def run(self, objective="energy"):
        plan = replace(self.plan, config=replace(self.plan.config, objective=objective))
        of = (self.board, self.verification, SkippedWorkloads(self.session))
        run = Run(plan, self.session, self.candidates, {}, *of)
        ranked = EnergyStage(run, self.device).measure()
        return {w: [one.config["block"] for one in found] for w, found in ranked.items()}

    def measured(self, workload):
        return [
            "-" if one.variant is None else one.variant.config["block"]
            for one in self.session.energies(workload)
        ]


def us_of(block: int) -> float:
    return 10.0 + block / 64


def timed(workload, block, status=Status.CORRECT) -> Trial:
    config = Config.of({"block": block, "items": 1})
    measurement = Measurement((us_of(block),) * 5, 20, 4)
    return Trial(INITIAL, workload, config, status, measurement=measurement)


@pytest.fixture
def make_stage(make_plan, make_session, compiler):
    opened = []

    def make(power, *, blocks=(32, 64, 256), **options):
        plan = make_plan(workloads=(SMALL, LARGE, Workload.of({"N": 3000}, held_out=True)))
        for earlier in opened:
            earlier.close()
        session = make_session(plan)
        opened.append(session)
        return Stage(plan, session, compiler, blocks, power, **options)

    yield make
    for session in opened:
        session.close()


def frugal_when_large(program) -> float:
    return {32: 600.0, 64: 420.0}.get(block_of(program), 500.0)


def test_idle_encloses_baseline_configs_best_and_baseline(make_stage):
    stage = make_stage(frugal_when_large)
    assert stage.run() == {SMALL: [64, 32, 256], LARGE: [64, 32, 256]}, "the least cost first"
    assert stage.measured(SMALL) == ["-", "-", 32, 64, 256, 64, "-", "-"]
    kinds = [one.kind for one in stage.session.energies(SMALL)]
    assert kinds[:2] + kinds[-2:] == ["idle", "baseline", "baseline", "idle"]
    (account,) = accounts(stage.session.energies(SMALL)).values()
    assert account.idle_w == (100.0, 100.0)
    assert len(account.baseline.windows) == 2
    assert all(one.window.seconds >= 5.0 for one in stage.session.energies())
    first = stage.board.notes[0]
    assert f"at most {MOST_CONFIGS} configs on each of 2 workloads, 5 s each" in first
    assert f"up to {2 * most_seconds(3) / 60:.0f} min" in first
    assert stage.board.remaining[0] == pytest.approx(2 * most_seconds(3))
    assert stage.board.remaining[-1] == 0.0
    assert stage.board.notes[1].startswith("N=1000: 3.52 mJ a call above idle, the baseline")
    again = make_stage(frugal_when_large)
    assert again.run()[SMALL] == [64, 32, 256]
    assert again.device.metered == again.board.notes == [], "nothing is measured again"


def test_a_slow_config_that_cannot_win_is_not_measured(make_stage):
    stage = make_stage(lambda program: 500.0, blocks=(32, 64, 512))
    assert stage.run()[SMALL] == [32, 64]


def test_edp_weighs_time_twice(make_stage):
    stage = make_stage(lambda program: 510.0 if block_of(program) == 32 else 470.0)
    assert stage.run("energy")[SMALL][0] == 64
    assert make_stage(lambda program: 0.0).run("edp")[SMALL][0] == 32, "taken from the session"


def test_an_interrupted_stage_goes_on_where_it_was(make_stage):
    seen = []

    def until_the_third(program):
        seen.append(program)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return frugal_when_large(program)

    stage = make_stage(until_the_third)
    with pytest.raises(KeyboardInterrupt):
        stage.run()
    assert stage.measured(SMALL) == ["-", "-", 32]
    again = make_stage(frugal_when_large)
    assert again.run()[SMALL] == [64, 32, 256]
    assert again.measured(SMALL) == ["-", "-", 32, "-", 64, 256, 64, "-", "-"]


def test_without_time_left_one_config_is_measured(make_stage):
    stage = make_stage(frugal_when_large, left=0.0)
    assert stage.run() == {SMALL: [32], LARGE: [32]}
    assert stage.measured(SMALL) == ["-", "-", 32, 32, "-", "-"]


def test_time_that_is_too_short_is_refused_before_anything_runs(make_plan):
    least_s = 2 * most_seconds(FEWEST_CONFIGS) / (1.0 - SEARCH_SHARE)
    require_time(make_plan(objective="energy"))
    require_time(make_plan(time_s=least_s, objective="edp"))
    require_time(make_plan(time_s=10.0))
    with pytest.raises(InputError) as caught:
        require_time(make_plan(time_s=90.0, objective="energy"))
    assert caught.value.message == "--time 90s is too short for --objective energy on 2 workloads"
    assert f"allow at least {math.ceil(least_s)}s" in str(caught.value)


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.TIMEOUT, Status.LAUNCH])
def test_a_config_that_fails_in_its_window_is_out_everywhere(make_stage, status):
    def power(program):
        return status if block_of(program) == 64 else 500.0

    stage = make_stage(power, blocks=(32, 64, 128))
    assert stage.run() == {SMALL: [32, 128], LARGE: [32, 128]}
    (check,) = stage.session.checks()
    assert (check.kind, check.passed, check.config["block"]) == ("energy", False, 64)
    assert "simulated" in check.reason


def test_a_config_that_is_far_faster_over_its_own_results_is_out(make_stage):
    def time_us(program):
        return 2.0 if block_of(program) == 32 else us_of(block_of(program))

    stage = make_stage(lambda program: 500.0, answer=time_us)
    assert 32 not in stage.run()[SMALL]
    (check, *_) = stage.session.checks()
    assert "a call takes 2 us when it is repeated over its own results, 10.5 us" in check.reason


def test_a_baseline_that_fails_ends_the_run(make_stage):
    stage = make_stage(lambda program: Status.TIMEOUT if block_of(program) == 128 else 500.0)
    with pytest.raises(KernelError, match="the baseline fails on N=1000 when it is repeated"):
        stage.run()


def test_a_workload_without_a_timed_config_is_left_out(make_stage):
    stage = make_stage(frugal_when_large, blocks=())
    assert stage.run() == {SMALL: [], LARGE: []}
    assert stage.device.metered == []
