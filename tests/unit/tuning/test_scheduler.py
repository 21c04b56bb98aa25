"""Whose turn it is: everyone once, then whoever promises most."""

from __future__ import annotations

from tuner.model.kernel import Workload
from tuner.tuning.scheduler import ENOUGH, TURN_TRIALS, WorkloadScheduler, WorkloadSearch

A, B, C = (Workload.of({"T": tokens}) for tokens in (1, 16, 128))


class Hopes:
    """Stands for a proposer: what it expects is set by the test."""

    def __init__(self, gain: float | None = None) -> None:
        self.gain = gain

    def expected_gain(self) -> float | None:
        return self.gain


def turns_of(*parts: WorkloadSearch, total: int = 1000) -> WorkloadScheduler:
    known = {part.workload: part for part in parts}
    return WorkloadScheduler([part.workload for part in parts], known.__getitem__, total)


def part(
    workload: Workload, gain: float | None = None, most: int = 100, first: int = 3
) -> WorkloadSearch:
    return WorkloadSearch(workload, Hopes(gain), most, first_turn=first, depth=8)


def play(turns: WorkloadScheduler, trials: int) -> list[Workload]:
    """Spend trials; give the workload of each."""
    spent = []
    while len(spent) < trials and (current := turns.current()) is not None:
        current.asked += 1
        current.told += 1
        spent.append(current.workload)
    return spent


def test_each_workload_has_a_first_turn_in_the_order_given():
    turns = turns_of(part(A), part(B), part(C))
    assert play(turns, 20) == [A] * 3 + [B] * 3 + [C] * 3, "nobody says what it expects: no more"


def test_then_the_one_that_promises_most_has_another():
    first, second = part(A, gain=0.02), part(B, gain=0.10)
    turns = turns_of(first, second)
    play(turns, 6)
    assert play(turns, TURN_TRIALS) == [B] * TURN_TRIALS
    second.proposer.gain = 0.01
    second.told += 1
    assert play(turns, 1) == [A]


def test_a_turn_ends_when_next_to_nothing_is_expected():
    first = part(A, gain=ENOUGH / 2, first=50)
    turns = turns_of(first, part(B, gain=0.1))
    assert play(turns, 3) == [B] * 3
    assert first.found_enough


def test_a_searcher_that_cannot_tell_yet_goes_on():
    turns = turns_of(part(A, gain=None, first=100))
    assert len(play(turns, 1000)) == 100


def test_budgets_are_kept():
    turns = turns_of(part(A, gain=0.5, most=10), part(B, gain=0.4, most=7))
    spent = play(turns, 1000)
    assert (spent.count(A), spent.count(B)) == (10, 7)


def test_all_together_take_no_more_than_the_total():
    turns = turns_of(part(A, gain=0.5), part(B, gain=0.4), total=50)
    assert len(play(turns, 1000)) == 50


def test_the_first_leaves_a_turn_to_each_of_the_others():
    turns = turns_of(part(A, first=100), part(B, first=12), part(C, first=12), total=60)
    spent = play(turns, 1000)
    assert (spent.count(A), spent.count(B), spent.count(C)) == (36, 12, 12)


def test_a_part_that_is_over_gets_no_turn():
    first = part(A, gain=0.5)
    turns = turns_of(first, part(B, gain=0.01))
    first.over = True
    assert A not in play(turns, 30)


def test_what_an_earlier_run_tried_counts_before_it_is_asked_for():
    one = part(A, most=5)
    one.asked, one.unasked = 2, {"a", "b"}  # type: ignore[assignment]
    assert one.may_begin
    one.asked = 3
    assert not one.may_begin
