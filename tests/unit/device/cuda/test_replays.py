"""Rounds of replays: who has a turn when, and what a time is between neighbours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tuner.device.cuda.replays import Replays
from tuner.model.statistics import LEAST_US


class Timed(Replays):
    """Replays that take so long as the graphs say, the first one longer."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.kept: list[Any] = []

    def run(self, graphs: Any, kept: Any = ()) -> tuple[list[float], float]:
        self.ran, self.kept = list(graphs), list(kept)
        return [1e6, *(graph.us for graph in self.ran[1:])], 1.0


def graph(us: float, calls: int = 4) -> Any:
    return SimpleNamespace(us=us, calls=calls)


@pytest.mark.parametrize(
    ("empty", "turns", "costs_us"),
    [(None, 2, [10.0, 3.75]), (graph(20.0), 4, [5.0, LEAST_US])],
    ids=["alone", "between neighbours"],
)
def test_all_have_a_turn_in_each_round(empty: Any, turns: int, costs_us: list[float]) -> None:
    replays, graphs, launchers = Timed(), [graph(40.0), graph(15.0)], ["a", "b"]
    rows, seconds = replays.rounds(graphs, launchers, empty, 8)  # type: ignore[arg-type]
    assert (rows, seconds) == ([costs_us] * 8, 1.0)
    first, *counted = replays.ran
    assert first is counted[0], "one in front is not counted"
    for start in range(0, len(counted), turns):
        of_round = counted[start : start + turns]
        assert [of_round.count(one) for one in graphs] == [1, 1]
        assert of_round.count(empty) == turns - 2
    assert {kept for kept in replays.kept if kept} == {(0, "a"), (1, "b")}
    assert replays.kept.count(None) == sum(one is empty for one in replays.ran)


def test_one_alone_has_the_empty_chain_once_a_round() -> None:
    replays, empty = Timed(), graph(20.0)
    rows, _ = replays.rounds([graph(40.0)], ["a"], empty, 3)  # type: ignore[list-item]
    assert rows == [[5.0]] * 3
    assert replays.ran[1:].count(empty) == 3
