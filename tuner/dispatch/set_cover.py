"""The smallest set that serves all, or the best set of a given size, by integer programs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Option = TypeVar("Option", bound=Hashable)
# What an earlier objective may give up for a later one: HiGHS keeps rows to within 1e-6.
_SLACK = 2e-6
# Sets of tuned workloads are proved smallest in a few nodes. Where hundreds of options serve
# dozens of rows nearly alike, the best set found by then is taken: a bound in nodes, not seconds,
# gives the same set every time.
NODES = 1000


def preload_solver() -> None:
    """Import the solver, which takes half a second."""
    import scipy.optimize  # noqa: F401


def smallest_set(
    costs: Sequence[Mapping[Option, float]], kind: Callable[[Option], Hashable]
) -> tuple[Option, ...]:
    """Choose one option a row, with as few different options as there can be.

    Of equally small sets those of the fewest kinds, and of these the one with the least total
    cost. No row may be empty.
    """
    program = _FacilityLocation(costs, kind, ())
    chosen = program.solve((program.options, program.kinds, program.costs))
    found = tuple(option for option in chosen if option is not None)
    if len(found) != len(chosen):
        raise ValueError("a row without any option cannot be served")
    return found


def best_set(
    costs: Sequence[Mapping[Option, float]],
    otherwise: Sequence[float],
    most: int,
    kind: Callable[[Option], Hashable],
) -> tuple[Option | None, ...]:
    """Choose one option a row, or none at the cost `otherwise`, with at most `most` different ones.

    The total cost is the least possible; of equal totals the set with the fewest options, then
    that with the fewest kinds.
    """
    program = _FacilityLocation(costs, kind, otherwise)
    program.at_most(program.options, most)
    return program.solve((program.costs, program.options, program.kinds))


class _Row(NamedTuple):
    coefficients: Mapping[int, float]
    low: float
    high: float


class _FacilityLocation(Generic[Option]):
    """An integer program: columns for options, their kinds, and who serves which row.

    Only the options are binary: with them fixed, the best assignment is integral by itself.
    """

    def __init__(
        self,
        costs: Sequence[Mapping[Option, float]],
        kind: Callable[[Option], Hashable],
        otherwise: Sequence[float],
    ) -> None:
        options = list(dict.fromkeys(option for row in costs for option in row))
        kinds = list(dict.fromkeys(map(kind, options)))
        self._pairs = [(r, option) for r, row in enumerate(costs) for option in row]
        self._rows_count = len(costs)
        start, self._first_pair = len(options), len(options) + len(kinds)
        self._first_none = self._first_pair + len(self._pairs)
        self._columns = self._first_none + len(otherwise)
        self.options = dict.fromkeys(range(len(options)), 1.0)
        self.kinds = dict.fromkeys(range(start, self._first_pair), 1.0)
        self.costs = {self._first_pair + i: costs[r][o] for i, (r, o) in enumerate(self._pairs)}
        self.costs |= {self._first_none + r: cost for r, cost in enumerate(otherwise)}
        place = {option: i for i, option in enumerate(options)}
        of_kind = {name: start + i for i, name in enumerate(kinds)}
        self._rows = [
            _Row({i: 1.0, of_kind[kind(o)]: -1.0}, -np.inf, 0.0) for o, i in place.items()
        ]
        served: list[dict[int, float]] = [
            {self._first_none + r: 1.0} if otherwise else {} for r in range(len(costs))
        ]
        for column, (r, option) in enumerate(self._pairs, start=self._first_pair):
            served[r][column] = 1.0
            self._rows.append(_Row({column: 1.0, place[option]: -1.0}, -np.inf, 0.0))
        self._rows += [_Row(row, 1.0, 1.0) for row in served]

    def at_most(self, objective: Mapping[int, float], value: float) -> None:
        self._rows.append(_Row(objective, -np.inf, value))

    def solve(self, objectives: Sequence[Mapping[int, float]]) -> tuple[Option | None, ...]:
        """Minimize one objective after the other, none at the cost of an earlier one."""
        if not self._pairs:
            return (None,) * self._rows_count
        values: NDArray[np.float64] = np.zeros(0)
        for objective in objectives:
            values = self._minimized(objective)
            reached = sum(values[i] * weight for i, weight in objective.items())
            self.at_most(objective, float(reached) + _SLACK)
        return self._chosen(values)

    def _minimized(self, objective: Mapping[int, float]) -> NDArray[np.float64]:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        entries = [
            (r, c, v) for r, row in enumerate(self._rows) for c, v in row.coefficients.items()
        ]
        at_row, at_column, weights = zip(*entries, strict=True)
        matrix = csr_array((weights, (at_row, at_column)), shape=(len(self._rows), self._columns))
        _, lows, highs = zip(*self._rows, strict=True)
        weight, binary = np.zeros(self._columns), np.zeros(self._columns)
        weight[list(objective)] = list(objective.values())
        binary[list(self.options)] = 1
        found = milp(
            weight,
            integrality=binary,
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(matrix, lows, highs),
            options={"mip_rel_gap": 0.0, "node_limit": NODES},
        )
        if found.x is None:
            raise ValueError(f"no choice is possible: {found.message}")
        values: NDArray[np.float64] = found.x
        return values

    def _chosen(self, values: NDArray[np.float64]) -> tuple[Option | None, ...]:
        # Two options of equal cost may share a row: the larger part, and the first of equal ones.
        best: dict[int, tuple[float, Option | None]] = {
            r: (float(values[self._first_none + r]), None)
            for r in range(self._columns - self._first_none)
        }
        for column, (r, option) in enumerate(self._pairs, start=self._first_pair):
            share = float(values[column])
            if r not in best or share > best[r][0] + _SLACK:
                best[r] = share, option
        return tuple(best[r][1] if r in best else None for r in range(self._rows_count))
