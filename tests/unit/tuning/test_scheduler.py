"""Whose turn it is: everyone once, then whoever promises most."""

from __future__ import annotations

from tuner.model.kernel import Workload
from tuner.model.settings import ENOUGH
from tuner.tuning.scheduler import TURN_TRIALS, WorkloadScheduler, WorkloadSearch

A, B, C = (Workload.of({"T": tokens}) for tokens in (1, 16, 128))


class Hopes:
    """Stands for a searcher: what it expects is set by the test."""

    def __init__(self, gain: float | None = None) -> None:
        self.gain = gain

    def expected_gain(self) -> float | None:
        return self.gain


def scheduler_of(*searches: WorkloadSearch, total: int = 1000) -> WorkloadScheduler:
    known = {search.workload: search for search in searches}
    return WorkloadScheduler([search.workload for search in searches], known.__getitem__, total)


def search(
    workload: Workload, gain: float | None = None, max_trials: int = 100, first: int = 3
) -> WorkloadSearch:
    return WorkloadSearch(workload, Hopes(gain), max_trials, first_turn=first, depth=8)


def play(scheduler: WorkloadScheduler, trials: int) -> list[Workload]:
    """Spend trials; give the workload of each."""
    spent = []
    while len(spent) < trials and (current := scheduler.current()) is not None:
        current.proposed += 1
        current.completed += 1
        spent.append(current.workload)
    return spent


def test_each_workload_has_a_first_turn_in_the_order_given():
    scheduler = scheduler_of(search(A), search(B), search(C))
    # nobody says what it expects: no more
    assert play(scheduler, 20) == [A] * 3 + [B] * 3 + [C] * 3


def test_then_the_one_that_promises_most_has_another():
    first, second = search(A, gain=0.02), search(B, gain=0.10)
    scheduler = scheduler_of(first, second)
    play(scheduler, 6)
    assert play(scheduler, TURN_TRIALS) == [B] * TURN_TRIALS
    second.searcher.gain = 0.01
    second.completed += 1
    assert play(scheduler, 1) == [A]


def test_a_turn_ends_when_next_to_nothing_is_expected():
    first = search(A, gain=ENOUGH / 2, first=50)
    scheduler = scheduler_of(first, search(B, gain=0.1))
    assert play(scheduler, 3) == [B] * 3
    assert first.found_enough


def test_who_looks_on_for_less_has_more_turns():
    first = search(A, gain=ENOUGH / 2, first=3)
    first.min_expected_gain = ENOUGH / 4
    assert len(play(scheduler_of(first), 1000)) == first.max_trials
    assert not first.found_enough


def test_a_searcher_that_cannot_tell_yet_goes_on():
    scheduler = scheduler_of(search(A, gain=None, first=100))
    assert len(play(scheduler, 1000)) == 100


def test_budgets_are_kept():
    scheduler = scheduler_of(search(A, gain=0.5, max_trials=10), search(B, gain=0.4, max_trials=7))
    spent = play(scheduler, 1000)
    assert (spent.count(A), spent.count(B)) == (10, 7)


def test_all_together_take_no_more_than_the_total():
    scheduler = scheduler_of(search(A, gain=0.5), search(B, gain=0.4), total=50)
    assert len(play(scheduler, 1000)) == 50


def test_the_first_leaves_a_turn_to_each_of_the_others():
    scheduler = scheduler_of(
        search(A, first=100), search(B, first=12), search(C, first=12), total=60
    )
    spent = play(scheduler, 1000)
    assert (spent.count(A), spent.count(B), spent.count(C)) == (36, 12, 12)


def test_a_part_that_is_over_gets_no_turn():
    first = search(A, gain=0.5)
    scheduler = scheduler_of(first, search(B, gain=0.01))
    first.exhausted = True
    assert A not in play(scheduler, 30)


def test_what_an_earlier_run_tried_counts_before_it_is_asked_for():
    one = search(A, max_trials=5)
    one.proposed, one.not_proposed = 2, {"a", "b"}  # type: ignore[assignment]
    assert one.may_begin
    one.proposed = 3
    assert not one.may_begin
