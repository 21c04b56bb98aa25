"""A race: rounds of all together, in which whoever is proved slower drops out.

Between its neighbours an operator of a microsecond costs a few percent of a chain, and one round
tells its cost to 5 to 20 %. What a fixed number of rounds chooses among configs that near is
chance; and most of the rounds go to configs that are out after the first few.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from tuner.device.base import RankedRounds
from tuner.model.statistics import SURE, trimmed_mean

# Rounds before anybody drops out.
FIRST_ROUNDS = 12
# Who is so many standard errors behind is out; in so few rounds 1 in 70 that are as fast would be.
PROVED = 3.0
# Costs that differ by less are the same: whoever of them wins, next to nothing is lost. With 0.003
# finals take a sixth longer and choose no better (benchmarks/simulated_seeds.py).
APART = 0.01
# Rounds are added to at most so many times those so far: then fewer may be left to run.
GROWTH = 4
# For all rounds but the first: a noisy workload takes as long as some twenty trials.
SECONDS = 2.0
# Of differences as good as normal, the trimmed mean needs two thirds of the median's rounds.
TRIMMED = 0.2

Measure = Callable[[Sequence[int], int], RankedRounds]
Matrix = np.ndarray[Any, np.dtype[np.float64]]
Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Raced:
    """What a runner takes (us), and whether it was proved `slower` than somebody."""

    us: float
    slower: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """How far each runner is behind the leader, with the standard error of that, in us."""

    leader: int
    leader_us: float
    behind_us: Vector
    errors_us: Vector

    @property
    def running(self) -> list[int]:
        """Who is not proved slower."""
        return np.flatnonzero(self.behind_us <= PROVED * self.errors_us).tolist()

    def growth(self) -> float:
        """Say how many times the rounds so far would tell all apart; at most 1 where they are."""
        small = APART * self.leader_us / SURE
        open_ = [k for k in self.running if k != self.leader and self.errors_us[k] > small]
        if not open_:
            return 1.0
        wanted = np.maximum(self.behind_us[open_] / PROVED, small)
        return float(((self.errors_us[open_] / wanted) ** 2).max())


@dataclass(frozen=True, slots=True)
class _Behind:
    """Who drops out, behind whom and by how many us; the leader takes `leader_us` until then."""

    runner: int
    leader: int
    leader_us: float
    us: float
    slower: bool


def race(
    measure: Measure,
    count: int,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Raced | None, ...]:
    """Return what each of `count` runners takes, None for those that went wrong.

    `measure` times the runners of these numbers together, in so many rounds: a row each, with None
    for whoever went wrong. What is said of one that dropped out rests on the rounds until then.
    """
    running, wanted, left_s = list(range(count)), FIRST_ROUNDS, seconds
    rounds = np.zeros((0, count))
    behind: list[_Behind] = []
    while True:
        began_s = clock()
        # None becomes NaN, which is not finite.
        rounds = np.vstack([rounds, np.array(measure(running, wanted), dtype=float)])
        took_s = clock() - began_s
        right = np.flatnonzero(np.isfinite(rounds).all(axis=0)).tolist()
        running, rounds = [running[k] for k in right], rounds[:, right]
        if not running:
            return (None,) * count
        now = standing(rounds)
        leader, ahead = running[now.leader], now.running
        if len(rounds) > FIRST_ROUNDS:
            left_s -= took_s
        round_s = took_s / wanted * (len(ahead) + 1) / (len(running) + 1)
        more = (min(now.growth(), 1.0 + GROWTH) - 1.0) * len(rounds)
        wanted = ceil(min(more, left_s / round_s) if round_s > 0.0 else more)
        out = [k for k in range(len(running)) if wanted < FIRST_ROUNDS or k not in ahead]
        behind += [
            _Behind(running[k], leader, now.leader_us, float(now.behind_us[k]), k not in ahead)
            for k in out
        ]
        if wanted < FIRST_ROUNDS:
            return _costs(count, behind)
        running, rounds = [running[k] for k in ahead], rounds[:, ahead]


def _costs(count: int, behind: Sequence[_Behind]) -> tuple[Raced | None, ...]:
    """Put together who was how far behind whom: whom it was behind may have dropped out later.

    Or it went wrong after that: then nothing is proved of those that it left behind.
    """
    last = behind[-1]
    costs = {last.leader: Raced(last.leader_us, slower=False)}
    for one in reversed(behind):
        if one.runner != last.leader:
            ahead = costs.get(one.leader)
            leader_us = ahead.us if ahead else one.leader_us
            costs[one.runner] = Raced(leader_us + one.us, one.slower and ahead is not None)
    return tuple(map(costs.get, range(count)))


def standing(rounds: Matrix) -> Standing:
    """Compare the columns with the fastest one's, round by round."""
    means_us, _ = trimmed_mean(rounds, TRIMMED)
    leader = int(np.argmin(means_us))
    behind_us, errors_us = trimmed_mean(rounds - rounds[:, [leader]], TRIMMED)
    # By the differences another one may lead.
    if behind_us.min() < 0.0:
        leader = int(np.argmin(behind_us))
        behind_us, errors_us = trimmed_mean(rounds - rounds[:, [leader]], TRIMMED)
        behind_us = np.maximum(behind_us, 0.0)
    return Standing(leader, float(means_us[leader]), behind_us, errors_us)
