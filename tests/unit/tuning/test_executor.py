"""Trials on their way to the device, and configs compiled ahead of being proposed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import pytest

from tuner.model.config import Config
from tuner.model.errors import OutOfMemory
from tuner.model.kernel import Workload
from tuner.model.trial import Status, Trial
from tuner.search.base import Features
from tuner.search.factory import RandomSearcher
from tuner.testing.searchers import make_trial
from tuner.tuning.evaluator import Pending
from tuner.tuning.executor import (
    AHEAD,
    DEPTH,
    DEPTH_FORESEEN,
    DEPTH_IN_FIXED_ORDER,
    SWITCH_S,
    TOGETHER,
    PrecompilingSearcher,
    TrialExecutor,
    depth_of,
    short_switch_interval,
)

W, V = Workload.of({"T": 1}), Workload.of({"T": 2})


def pending(number: int, workload: Workload = W) -> Pending:
    return Pending(workload, Config.of({"n": number}), 0.0)


def trial(number: int, us: float | None, workload: Workload = W) -> Trial:
    return make_trial(Config.of({"n": number}), us, workload, status=Status.INCORRECT)


class Times:
    """An evaluator that takes config n to need `us[n]`; notes the incumbents that it is given."""

    def __init__(self, us: dict[int, float | None]) -> None:
        self.us, self.incumbents = us, []
        self.hold = threading.Event()
        self.hold.set()
        self.done = threading.Event()

    def finish(self, one: Pending, *, incumbent_us: float | None = None) -> Trial:
        self.hold.wait(10)
        self.incumbents.append(incumbent_us)
        number = one.config["n"]
        if number == max(self.us):
            self.done.set()
        if number not in self.us:
            raise KeyError(number)
        return trial(number, self.us[number], one.workload)


@pytest.fixture
def made():
    pipelines = []

    def make(us: dict[int, float | None], **options) -> tuple[TrialExecutor, Times]:
        evaluator = Times(us)
        pipelines.append(TrialExecutor(evaluator, **options))
        return pipelines[-1], evaluator

    yield make
    for one in pipelines:
        one.close()


def test_a_trial_is_compared_with_the_best_before_it_on_its_own_workload(made):
    executor, evaluator = made({0: 3.0, 1: 2.0, 2: 5.0, 3: None, 4: 1.0})
    executor.begin(pending(0))
    executor.begin(pending(1, V))
    executor.begin(trial(9, 2.5))  # known already
    for number in (2, 3, 4):
        executor.begin(pending(number))
    assert [executor.take().config["n"] for _ in range(6)] == [0, 1, 9, 2, 3, 4]
    assert len(executor) == 0
    assert evaluator.incumbents == [None, None, 2.5, 2.5, 2.5]


def test_a_device_that_runs_several_at_once_is_given_several(made):
    executor, evaluator = made({0: 3.0, 1: 2.0, 2: 1.0}, parallel=3)
    together = threading.Barrier(3)
    finish = evaluator.finish

    def waiting(one: Pending, **options) -> Trial:
        together.wait(30)  # for the two others: alone it would never go on
        return finish(one, **options)

    evaluator.finish = waiting
    for number in range(3):
        executor.begin(pending(number))
    assert sorted(executor.take().config["n"] for _ in range(3)) == [0, 1, 2]


def first_held_up(evaluator) -> threading.Event:
    """Have the trial of the first config wait for an event."""
    released, finish = threading.Event(), evaluator.finish

    def slow_first(one: Pending, **options) -> Trial:
        if one.config["n"] == 0:
            released.wait(30)
        return finish(one, **options)

    evaluator.finish = slow_first
    return released


def test_a_slow_trial_keeps_no_other_waiting_where_several_run_at_once(made):
    executor, evaluator = made({0: 3.0, 1: 2.0, 2: 1.0}, parallel=2)
    released = first_held_up(evaluator)
    for number in range(3):
        executor.begin(pending(number))
    assert [executor.take().config["n"] for _ in range(2)] == [1, 2]
    released.set()
    assert executor.take().config["n"] == 0


def test_one_that_ends_after_a_faster_one_is_not_taken_for_the_best(made):
    executor, evaluator = made({0: 3.0, 1: 1.0, 2: 2.0}, parallel=2)
    released = first_held_up(evaluator)
    for number in range(2):
        executor.begin(pending(number))
    assert executor.take().config["n"] == 1
    released.set()
    assert executor.take().config["n"] == 0
    executor.begin(pending(2))
    assert executor.take().config["n"] == 2
    assert evaluator.incumbents[-1] == 1.0


def test_what_has_ended_behind_a_slow_trial_is_not_lost(made):
    executor, evaluator = made({0: 3.0, 1: 2.0}, parallel=2)
    released = first_held_up(evaluator)
    for number in range(2):
        executor.begin(pending(number))
    assert evaluator.done.wait(30)
    assert [one.config["n"] for one in executor.take_ended()] == [1]
    released.set()


def test_memory_that_ends_on_a_workload_costs_no_other(made):
    executor, evaluator = made({0: 3.0, 1: 2.0, 2: 1.0})
    finish, tried = evaluator.finish, []

    def without_room(one: Pending, **options) -> Trial:
        tried.append(one.config["n"])
        if one.workload == W:
            raise OutOfMemory("no room", W.key)
        return finish(one, **options)

    evaluator.finish = without_room
    for workload, number in ((W, 0), (V, 1), (W, 2), (V, 2)):
        executor.begin(pending(number, workload))
    executor.begin(trial(9, 2.5))  # known already
    for time_us in (None, 2.0, None, 1.0, 2.5):
        if time_us is None:
            with pytest.raises(OutOfMemory):
                executor.take()
        else:
            assert executor.take().time_us == time_us
    assert len(executor) == 0
    assert tried == [0, 1, 2], "another attempt would find none either"


def test_without_incumbents_every_trial_is_measured_in_full(made):
    executor, evaluator = made({0: 3.0, 1: 2.0}, adaptive=False)
    for number in (0, 1):
        executor.begin(pending(number))
        executor.take()
    assert evaluator.incumbents == [None, None]


def test_an_error_ends_the_rest_and_reaches_whoever_takes(made):
    executor, evaluator = made({0: 1.0})
    for number in (0, 7, 0):
        executor.begin(pending(number))
    assert executor.take().time_us == 1.0
    with pytest.raises(KeyError):
        executor.take()
    assert list(executor.take_ended()) == []
    assert len(evaluator.incumbents) == 2, "what came after the error was not begun"


def test_what_has_ended_when_a_run_is_given_up_is_not_lost(made):
    executor, evaluator = made({0: 1.0, 1: 2.0})
    last = threading.Event()
    evaluator.done = last
    executor.begin(pending(0))
    executor.begin(pending(1))
    assert last.wait(10)
    assert [one.time_us for one in executor.take_ended()] == [1.0, 2.0]


def test_nothing_new_is_begun_after_the_end(made):
    executor, evaluator = made({0: 1.0, 1: 2.0})
    evaluator.hold.clear()
    executor.begin(pending(0))
    executor.begin(pending(1))
    assert len(executor) == 2, "`begin` has not waited"
    executor.close()
    evaluator.hold.set()
    assert [one.time_us for one in executor.take_ended()] == [1.0]


class Compiler:
    """Stands for an evaluator: configs from `broken` on don't compile."""

    def __init__(self, broken: int = 1000) -> None:
        self.broken = broken
        self.started: list[int] = []
        self.seen: list[int] = []

    def start(self, workload: Workload, config: Config) -> Pending:
        self.started.append(config["n"])
        return Pending(workload, config, 0.0)

    def foresee(self, pending: Pending) -> Features | Trial:
        number = pending.config["n"]
        self.seen.append(number)
        if number >= self.broken:
            return Trial("initial", W, pending.config, Status.COMPILE, "no")
        return {"registers": float(number)}


class Plain:
    """Asks for 0, 1, 2, ..."""

    def __init__(self, count: int) -> None:
        self.left = list(range(count))
        self.told: list[Trial] = []

    def ask(self, count: int) -> Sequence[Config]:
        taken, self.left = self.left[:count], self.left[count:]
        return [Config.of({"n": number}) for number in taken]

    def tell(self, trial: Trial) -> None:
        self.told.append(trial)


class Choosy(Plain):
    """Has every config compiled, two for each ask, and asks for those with few registers first."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.known: dict[int, Config] = {}

    def shortlist(self, count: int) -> Sequence[Config]:
        return super().ask(2 * count)

    def foresee(self, config: Config, features: Features) -> None:
        self.known[int(features["registers"])] = config

    def ask(self, count: int) -> Sequence[Config]:
        return [self.known.pop(number) for number in sorted(self.known)[:count]]


def proposed(searcher: PrecompilingSearcher) -> list[int]:
    found = []
    while (pending := searcher.next()) is not None:
        found.append(pending.config["n"])
    return found


def test_a_plain_searchers_configs_are_compiled_as_they_are_asked_for():
    compiler = Compiler()
    assert proposed(PrecompilingSearcher(Plain(5), compiler, W)) == [0, 1, 2, 3, 4]
    assert compiler.started == [0, 1, 2, 3, 4]
    assert compiler.seen == []


def test_a_shortlist_is_compiled_ahead_and_each_config_once():
    compiler = Compiler()
    searcher = PrecompilingSearcher(Choosy(60), compiler, W)
    assert sorted(proposed(searcher)) == list(range(60)), "the last ones too"
    assert sorted(compiler.started) == list(range(60))
    assert compiler.seen == list(range(60)), "in the order of the lists"
    assert searcher.features(Config.of({"n": 7})) == {"registers": 7.0}


def test_the_first_are_begun_together_and_in_the_end_no_more_than_without():
    compiler, one_by_one = Compiler(), Compiler()
    searcher, patient = (PrecompilingSearcher(Choosy(60), of, W) for of in (compiler, one_by_one))
    searcher.begin()
    assert len(compiler.started) == TOGETHER
    assert not compiler.seen, "nobody waits for them"
    for asked in range(1, 20):
        assert searcher.next()
        assert patient.next()
        assert len(compiler.started) == max(TOGETHER, 2 * asked)
        assert len(one_by_one.started) == 2 * asked
    plain = Compiler()
    PrecompilingSearcher(Plain(5), plain, W).begin()
    assert not plain.started, "it has no list"


def test_no_more_than_the_bound_is_being_compiled():
    compiler = Compiler()
    searcher = PrecompilingSearcher(Choosy(500), compiler, W)
    for _ in range(50):
        searcher.next()
        assert len(compiler.started) - len(compiler.seen) <= AHEAD


def test_waiting_for_a_compilation_counts_as_the_compilers_while_the_device_is_idle(
    made, monkeypatch
):
    class Slow(Compiler):
        def foresee(self, pending: Pending) -> Features | Trial:
            clock[0] += 1.0
            return super().foresee(pending)

    clock = [0.0]
    monkeypatch.setattr("tuner.tuning.executor.time.monotonic", lambda: clock[0])
    executor, evaluator = made({0: 1.0, 1: 1.0})
    choosy = Choosy(AHEAD + 2)
    searcher = PrecompilingSearcher(choosy, Slow(), W, executor.waited)
    for config in choosy.shortlist(1 + AHEAD // 2):
        searcher._compiling.append(pending(config["n"]))
    searcher._foresee_next(choosy)
    assert executor.compiler_s == 1.0, "nothing was begun yet"
    evaluator.hold.clear()
    executor.begin(pending(0))
    searcher._foresee_next(choosy)
    assert executor.compiler_s == 1.0, "the device has something to do"
    evaluator.hold.set()
    executor.take()
    clock[0] += 5.0
    searcher._foresee_next(choosy)
    assert executor.compiler_s == 2.0, "what it was idle before is not the compiler's"


def test_what_cannot_run_is_told_and_handed_over_without_being_asked_for():
    compiler, choosy = Compiler(broken=40), Choosy(60)
    searcher = PrecompilingSearcher(choosy, compiler, W)
    assert sorted(proposed(searcher)) == list(range(40))
    refused = searcher.take_refused()
    assert [trial.config["n"] for trial in refused] == list(range(40, 60))
    assert choosy.told == refused
    assert searcher.take_refused() == []


def test_a_searcher_that_cannot_tell_expects_nothing_in_particular():
    searcher = PrecompilingSearcher(Plain(3), Compiler(), W)
    assert searcher.expected_gain() is None
    assert searcher.features(Config.of({"n": 0})) is None
    searcher.share(Trial("initial", W, Config.of({"n": 0}), Status.INCORRECT), None)


@pytest.mark.parametrize(("cores", "depth"), [(2, DEPTH), (12, 24), (64, DEPTH_IN_FIXED_ORDER)])
def test_only_an_order_that_is_fixed_may_depend_on_the_cores(monkeypatch, cores, depth):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    assert depth_of(RandomSearcher.__new__(RandomSearcher)) == depth
    assert depth_of(Plain(0)) == DEPTH
    assert depth_of(Choosy(0)) == DEPTH_FORESEEN


def test_turns_are_as_they_were_once_nobody_waits_for_a_device():
    before_s = sys.getswitchinterval()
    with pytest.raises(KeyboardInterrupt), short_switch_interval():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        raise KeyboardInterrupt
    assert sys.getswitchinterval() == before_s
