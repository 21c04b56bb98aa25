"""The smallest set that serves all, or the best set of a given size, by integer programs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

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
    if len(costs) == 1 and costs[0]:
        # Its cheapest option, for which the solver, half a second to import, is not needed.
        return (min(costs[0], key=costs[0].__getitem__),)
    chosen = _solve(costs, kind, ("options", "kinds", "costs"))
    options = tuple(option for option in chosen if option is not None)
    if len(options) != len(chosen):
        raise ValueError("a row without any option cannot be served")
    return options


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
    return _solve(costs, kind, ("costs", "options", "kinds"), otherwise, most)


def fewest_set(
    costs: Sequence[Mapping[Option, float]],
    otherwise: Sequence[float],
    more: float,
    kind: Callable[[Option], Hashable],
) -> tuple[Option | None, ...]:
    """Choose as `best_set` does the fewest options that cost at most `more` than all of them do.

    One at least, where there is any.
    """
    if len(costs) == 1:  # without the solver, as above
        return (min(costs[0], key=costs[0].__getitem__, default=None),)
    least = sum(min((*row.values(), c)) for row, c in zip(costs, otherwise, strict=True))
    return _solve(costs, kind, ("options", "kinds", "costs"), otherwise, dearest=least + more)


def _solve(
    costs: Sequence[Mapping[Option, float]],
    kind: Callable[[Option], Hashable],
    order: Sequence[str],
    otherwise: Sequence[float] = (),
    most: int | None = None,
    dearest: float | None = None,
) -> tuple[Option | None, ...]:
    """Minimize one objective after the other, none at the cost of an earlier one.

    An integer program: columns for options, their kinds, who serves which row, and the rows that
    nothing serves. Only the options are binary: with them fixed, the best assignment is integral
    by itself.
    """
    pairs = [(r, option) for r, row in enumerate(costs) for option in row]
    if not pairs:
        return (None,) * len(costs)
    options = {option: i for i, option in enumerate(dict.fromkeys(option for _, option in pairs))}
    kinds = {name: i for i, name in enumerate(dict.fromkeys(map(kind, options)), len(options))}
    first_pair = len(options) + len(kinds)
    first_none = first_pair + len(pairs)
    costs_of = {first_pair + i: costs[r][option] for i, (r, option) in enumerate(pairs)}
    objectives: Mapping[str, Mapping[int, float]] = {
        "options": dict.fromkeys(options.values(), 1.0),
        "kinds": dict.fromkeys(kinds.values(), 1.0),
        "costs": costs_of | dict(enumerate(otherwise, first_none)),
    }
    rows = [
        _Row({i: 1.0, kinds[kind(option)]: -1.0}, -np.inf, 0.0) for option, i in options.items()
    ]
    served = [{first_none + r: 1.0} if otherwise else {} for r in range(len(costs))]
    for column, (r, option) in enumerate(pairs, first_pair):
        served[r][column] = 1.0
        rows.append(_Row({column: 1.0, options[option]: -1.0}, -np.inf, 0.0))
    rows += [_Row(row, 1.0, 1.0) for row in served]
    if most is not None:
        rows.append(_Row(objectives["options"], -np.inf, most))
    if dearest is not None:
        rows.append(_Row(objectives["costs"], -np.inf, dearest + _SLACK))
        rows.append(_Row(objectives["options"], 1.0, np.inf))
    for objective in map(objectives.__getitem__, order):
        values = _minimize_cost(objective, rows, len(options), first_none + len(otherwise))
        reached = sum(values[i] * weight for i, weight in objective.items())
        rows.append(_Row(objective, -np.inf, float(reached) + _SLACK))
    # Two options of equal cost may share a row: the larger part, and the first of equal ones.
    best: dict[int, tuple[float, Option | None]] = {
        r: (values[first_none + r], None) for r in range(len(otherwise))
    }
    for share, (r, option) in zip(values[first_pair:first_none], pairs, strict=True):
        if r not in best or share > best[r][0] + _SLACK:
            best[r] = share, option
    return tuple(best[r][1] if r in best else None for r in range(len(costs)))


class _Row(NamedTuple):
    coefficients: Mapping[int, float]
    low: float
    high: float


def _minimize_cost(
    objective: Mapping[int, float], rows: Sequence[_Row], binaries: int, columns: int
) -> list[float]:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    entries = [(r, c, v) for r, row in enumerate(rows) for c, v in row.coefficients.items()]
    at_row, at_column, weights = zip(*entries, strict=True)
    matrix = csr_array((weights, (at_row, at_column)), shape=(len(rows), columns))
    _, lows, highs = zip(*rows, strict=True)
    weight = np.zeros(columns)
    weight[list(objective)] = list(objective.values())
    # Its presolve fails on some rows that leave an earlier objective 2e-6: 1 in 2,500 at random.
    for presolve in (True, False):
        solution = milp(
            weight,
            integrality=np.arange(columns) < binaries,
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(matrix, lows, highs),
            options={"mip_rel_gap": 0.0, "node_limit": NODES, "presolve": presolve},
        )
        if solution.x is not None:
            values: list[float] = solution.x.tolist()
            return values
    raise ValueError(f"no choice is possible: {solution.message}")
