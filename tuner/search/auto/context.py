"""What a search knows: trials, and configs as numeric columns between which there are distances."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, log2
from typing import Any

import numpy as np

from tuner.model.config import Parameter
from tuner.model.expressions import Value
from tuner.model.trial import Status, Trial
from tuner.search.base import Features
from tuner.search.pool import Pool, RemainingConfigs

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Vector = np.ndarray[Any, np.dtype[np.float64]]


class ConfigColumns:
    """Turn rows of value indices into numbers from 0 to 1; parameters of one value are left out.

    Positive numbers are taken as logarithms, other numbers by their rank, switches as 0 and 1, and
    every text as a column of its own. Integers that are not all powers of two get a second column:
    how often two divides them, which decides alignment and whole warps.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._tables: list[tuple[int, Vector]] = []
        for position, parameter in enumerate(parameters):
            if len(parameter.values) < 2:
                continue
            for table in _tables(parameter.values):
                low, high = float(table.min()), float(table.max())
                # a share of a one-hot code keeps its length
                scaled = table if low >= 0 and high < 1 else (table - low) / (high - low)
                self._tables.append((position, scaled))

    def of(self, rows: np.ndarray[Any, Any]) -> Matrix:
        columns = [table[rows[:, position]] for position, table in self._tables]
        return np.column_stack(columns) if columns else np.zeros((len(rows), 0))


def _tables(values: Sequence[Value]) -> Iterator[Vector]:
    """Yield, for each column of a parameter, its number for every value."""
    if any(isinstance(value, str) for value in values):
        codes = np.eye(len(values))
        # the second of two categories says nothing that the first does not
        yield from codes[:1] if len(values) == 2 else codes / np.sqrt(2)
        return
    numbers = np.array(values, dtype=float)
    if any(isinstance(value, bool | str) or value <= 0 for value in values):
        yield np.argsort(np.argsort(numbers)).astype(float)
        return
    yield np.log2(numbers)
    if all(isinstance(value, int) for value in values):
        twos = np.array([(int(value) & -int(value)).bit_length() for value in values], dtype=float)
        whole = all(int(value) & (int(value) - 1) == 0 for value in values)
        if not whole and len(set(twos.tolist())) > 1:
            yield twos


# A config that was stopped early is slower than the incumbent by at least this (log of a ratio):
# its few samples rank it among the slow ones and must never look like a find.
_CLEARLY_SLOWER = log(1.05)
# Below this spread of log times a model sees noise.
_LEAST_SPREAD = 0.01
# A workload's own spread counts once it has several times this many trials.
_FEW = 5.0


@dataclass(slots=True)
class SearchTrial:
    """One config on one workload: proposed, then told. `log_us` is None where it failed.

    `levels` are the features as models take them.
    """

    x: Vector
    group: int
    index: int | None = None
    status: Status | None = None
    log_us: float | None = None
    features: Features | None = None
    levels: Vector | None = None
    is_seed: bool = False

    @property
    def says_something(self) -> bool:
        return self.status not in (None, Status.NOT_RECORDED)


@dataclass(slots=True)
class Memory:
    """Rows in the order in which they were proposed (own) or shared (of other workloads).

    `waiting` are configs, by position, that are compiled to be chosen from; `named` those of them
    that a model takes for rows until it is fitted again.
    """

    rows: list[SearchTrial] = field(default_factory=list)
    named: list[SearchTrial] = field(default_factory=list)
    waiting: dict[int, SearchTrial] = field(default_factory=dict)
    _groups: dict[Hashable, int] = field(default_factory=dict)

    def group(self, workload: Hashable) -> int:
        """Number the workloads; the searcher's own is 0."""
        return self._groups.setdefault(workload, len(self._groups) + 1)

    def finish(self, row: SearchTrial, trial: Trial) -> None:
        row.status = trial.status
        if trial.time_us is None or trial.measurement is None:
            return
        row.log_us = log(max(trial.time_us, 1e-6))
        if trial.measurement.stopped_early:
            best = self.best(row.group, besides=row)
            if best is not None and best.log_us is not None:
                row.log_us = max(row.log_us, best.log_us + _CLEARLY_SLOWER)

    def best(self, group: int = 0, besides: SearchTrial | None = None) -> SearchTrial | None:
        timed = [r for r in self.rows if r.group == group and r.log_us is not None]
        return min(
            (r for r in timed if r is not besides), key=lambda r: r.log_us or 0.0, default=None
        )

    def told(self) -> list[SearchTrial]:
        """List the rows that say something."""
        return [row for row in self.rows if row.says_something]


def mark_told(rows: list[SearchTrial]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([row.says_something for row in rows], dtype=bool)


def group_numbers(rows: list[SearchTrial]) -> np.ndarray[Any, np.dtype[np.intp]]:
    return np.array([row.group for row in rows], dtype=np.intp)


def targets(rows: list[SearchTrial]) -> tuple[Vector, Vector]:
    """Make the values that models learn, one a row, and the scale of each group (`[groups]`).

    Of every group: log times less their median; what is slower than the median is compressed (a
    model needs to know that it is slow, not how slow); failures are as bad as the slowest; divided
    by the group's own spread, which few trials share with the others.
    """
    groups = group_numbers(rows)
    values = np.zeros(len(rows))
    count = int(groups.max(initial=0)) + 1
    spreads, sizes = np.zeros(count), np.zeros(count)
    for group in np.unique(groups):
        places = np.flatnonzero(groups == group)
        values[places] = _level_times([rows[i] for i in places])
        sizes[group], spreads[group] = len(places), values[places].std()
    pooled = np.sqrt((sizes * spreads**2).sum() / max(1.0, sizes.sum()))
    spreads = np.sqrt((sizes * spreads**2 + _FEW * pooled**2) / (sizes + _FEW))
    scales = np.maximum(spreads, _LEAST_SPREAD)
    return values / scales[groups], scales


def _level_times(rows: list[SearchTrial]) -> Vector:
    logs = np.array([np.nan if row.log_us is None else row.log_us for row in rows])
    timed = logs[~np.isnan(logs)]
    if not len(timed):
        return np.ones(len(rows))
    middle = float(np.median(timed))
    knee = max(middle - float(timed.min()), _LEAST_SPREAD)
    compressed = knee * np.log1p(np.maximum(logs - middle, 0.0) / knee)
    values = np.where(logs > middle, compressed, logs - middle)
    worst = max(float(np.nanmax(values)), knee)
    # a timeout may be the machine's doing: slow, but not as bad as the worst
    failed = [0.5 * worst if row.status is Status.TIMEOUT else worst for row in rows]
    return np.where(np.isnan(logs), failed, values)


Indices = np.ndarray[Any, np.dtype[np.intp]]
# Configs that a model judges: all of a small pool, else a part, redrawn with every fit, and the
# neighbours of the best. Leaving out a third of a pool of 4,362 (convolution_MI250X) halved the
# score at 100.
MOST_CANDIDATES = 6000
NEIGHBOURS_OF = 5
# Axes are taken in units of this many doublings: the columns of a config run over about one unit.
_DOUBLINGS = 10.0


@dataclass(frozen=True, slots=True)
class SearchContext:
    """The pool of one workload, its untried configs and the memory of all trials.

    A row of `x` is: the columns of a config, the axes of its workload, its value indices.
    """

    pool: Pool
    remaining: RemainingConfigs
    memory: Memory
    columns: ConfigColumns
    axes: Mapping[str, int]
    rng: np.random.Generator

    @property
    def codes(self) -> int:
        """How many columns at the end of a row of `x` are value indices."""
        return len(self.pool.parameters)

    def x(self, indices: Indices) -> Matrix:
        """Return the rows of configs of the pool, on the searcher's own workload."""
        return self.x_of(self.pool.encoded[indices], self.axes)

    def x_of(self, rows: np.ndarray[Any, Any], axes: Mapping[str, int]) -> Matrix:
        """Return the rows of configs, given as value indices, on any workload."""
        own = self.columns.of(rows)
        units = [log2(1 + axes.get(name, size)) / _DOUBLINGS for name, size in self.axes.items()]
        return np.hstack([own, np.tile(np.array(units), (len(own), 1)), rows])

    def candidates(self) -> Indices:
        """Choose configs to judge, in the order of the pool: untried ones and those compiled."""
        size = len(self.pool)
        chosen = np.arange(size)
        if size > MOST_CANDIDATES:
            timed = [r for r in self.memory.rows if r.index is not None and r.log_us is not None]
            timed.sort(key=lambda row: (row.group, row.log_us))
            best = [row.index for row in timed[:NEIGHBOURS_OF] if row.index is not None]
            near = [self.pool.neighbours(index) for index in best]
            far = self.rng.integers(size, size=MOST_CANDIDATES)
            waiting = np.array(list(self.memory.waiting), dtype=np.intp)
            chosen = np.unique(np.concatenate([*near, far, waiting]))
        compiled = np.isin(chosen, list(self.memory.waiting))
        judged: Indices = chosen[self.remaining.are_free(chosen) | compiled]
        return judged
