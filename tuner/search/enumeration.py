"""Which combinations of parameter values satisfy a set of constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.errors import ExpressionError, InputError
from tuner.search.residual import solver_text

# value indices: one row per config, one column per parameter
Rows = np.ndarray[Any, np.dtype[np.uint16]]
MAX_VALUES = 2**16

if TYPE_CHECKING:
    from tuner.expressions import Expression, Value
    from tuner.space import Parameter


# About 300 MB of indices for nine parameters; a search tries a few hundred configs.
MAX_CONFIGS = 32_000_000


@dataclass(frozen=True, slots=True)
class Domains:
    """Parameters as a cache key that keeps `true`, `1` and `1.0` apart."""

    text: str
    parameters: tuple[Parameter, ...] = field(compare=False, repr=False)

    @classmethod
    def of(cls, parameters: tuple[Parameter, ...]) -> Domains:
        """Make the key from names and values."""
        return cls(repr([(p.name, p.values) for p in parameters]), parameters)


@dataclass(frozen=True, slots=True)
class Solutions:
    """Rows of value indices in lexicographic order, or the first constraint that fails on one.

    `failure` is a constraint's position with the row it fails on; `emptied_by` is the position of
    the first constraint that alone leaves no row.
    """

    rows: Rows
    failure: tuple[int, tuple[int, ...]] | None = None
    emptied_by: int | None = None


@lru_cache(maxsize=8)
def enumerate_rows(domains: Domains, residuals: tuple[Expression, ...]) -> Solutions:
    """Find every row that satisfies all residual constraints."""
    parameters = domains.parameters
    if not all(parameter.values for parameter in parameters):
        return Solutions(no_rows(len(parameters)))
    solutions = _solutions(parameters, residuals)
    if len(solutions.rows) or solutions.failure:
        return solutions
    for position, residual in enumerate(residuals):
        alone = _constrained(parameters, (residual,))
        if not len(alone[0].rows):
            return Solutions(solutions.rows, emptied_by=position)
    return solutions


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of value indices for some of the parameters, given by their positions."""

    positions: tuple[int, ...]
    rows: Rows

    def cross(self, parameters: tuple[Parameter, ...], names: set[str]) -> _Table:
        """Add the parameters in `names` that are not there yet, with all their values."""
        new = [i for i, p in enumerate(parameters) if p.name in names and i not in self.positions]
        if len(self.rows) * prod(len(parameters[i].values) for i in new) > MAX_CONFIGS:
            raise InputError(
                f"the constraints leave more than {MAX_CONFIGS} configs",
                remedy="add constraints or remove values: a search tries a few hundred configs",
            )
        rows = self.rows
        for i in new:
            values = np.arange(len(parameters[i].values), dtype=np.uint16)
            column = np.tile(values, len(rows))
            rows = np.column_stack([np.repeat(rows, len(values), axis=0), column])
        return _Table((*self.positions, *new), rows)

    def columns(self, positions: Sequence[int]) -> Rows:
        """The value indices of some parameters, one column each."""
        return self.rows[:, [self.positions.index(position) for position in positions]]


def _solutions(parameters: tuple[Parameter, ...], residuals: tuple[Expression, ...]) -> Solutions:
    table, failure = _constrained(parameters, residuals)
    if failure is not None:
        return Solutions(no_rows(len(parameters)), failure)
    table = table.cross(parameters, {parameter.name for parameter in parameters})
    rows = table.columns(range(len(parameters)))
    if parameters:
        rows = rows[np.lexsort(rows.T[::-1])]
    rows.flags.writeable = False
    return Solutions(rows)


def _constrained(
    parameters: tuple[Parameter, ...], residuals: tuple[Expression, ...]
) -> tuple[_Table, tuple[int, tuple[int, ...]] | None]:
    names = _solver_names(parameters)
    textual = {p.name for p in parameters if any(isinstance(value, str) for value in p.values)}
    texts = [solver_text(r, names, textual) if r.names else None for r in residuals]
    table = _solve(parameters, residuals, texts)
    if table is None:
        # Whatever raises alone is left to `Expression`, which can say why and for which values.
        texts = [
            text if _solve(parameters, (residual,), (text,)) is not None else None
            for residual, text in zip(residuals, texts, strict=True)
        ]
        table = _solve(parameters, residuals, texts)
    assert table is not None
    remaining = [(i, residuals[i]) for i, text in enumerate(texts) if text is None]
    if not remaining:
        return table, None
    table = table.cross(parameters, {name for _, residual in remaining for name in residual.names})
    return _filter(table, parameters, remaining)


def _solver_names(parameters: tuple[Parameter, ...]) -> dict[str, str]:
    # The user's names may be Python's (`lambda`) or the solver's (`block_size_x`).
    return {parameter.name: f"parameter_{i}_" for i, parameter in enumerate(parameters)}


def _solve(
    parameters: tuple[Parameter, ...],
    residuals: Sequence[Expression],
    texts: Sequence[str | None],
) -> _Table | None:
    """Hand whole constraints to Kernel Tuner's solver; None where one of them raises."""
    chosen = [(r.names, text) for r, text in zip(residuals, texts, strict=True) if text is not None]
    used = {name for names, _ in chosen for name in names}
    positions = tuple(i for i, parameter in enumerate(parameters) if parameter.name in used)
    if not positions:
        return _Table((), np.empty((1, 0), dtype=np.uint16))
    from kernel_tuner.searchspace import Searchspace

    # ` and N` keeps each text out of the solver's own parser, which matches on the characters of
    # the text (also inside strings), and makes texts that differ only in spaces distinct.
    restrictions = [f"({text}) and {number}" for number, (_, text) in enumerate(chosen, 1)]
    names = _solver_names(parameters)
    values = {names[parameters[i].name]: list(parameters[i].values) for i in positions}
    try:
        solved = Searchspace(values, restrictions, max_threads=1, block_size_names=[]).list
    except (ArithmeticError, TypeError, ValueError):
        return None
    return _Table(positions, _encode(solved, [parameters[i] for i in positions]))


def _encode(configs: Sequence[tuple[Value, ...]], parameters: Sequence[Parameter]) -> Rows:
    rows = np.empty((len(configs), len(parameters)), dtype=np.uint16)
    columns = zip(*configs, strict=True)
    for i, (values, parameter) in enumerate(zip(columns, parameters, strict=False)):
        lookup = {value: index for index, value in enumerate(parameter.values)}
        rows[:, i] = np.fromiter(map(lookup.__getitem__, values), np.uint16, len(configs))
    return rows


def _filter(
    table: _Table, parameters: tuple[Parameter, ...], residuals: Sequence[tuple[int, Expression]]
) -> tuple[_Table, tuple[int, tuple[int, ...]] | None]:
    keep = np.ones(len(table.rows), dtype=bool)
    failures = []
    for position, residual in residuals:
        used = [i for i, parameter in enumerate(parameters) if parameter.name in residual.names]
        distinct, inverse = np.unique(table.columns(used), axis=0, return_inverse=True)
        verdicts = [
            _verdict(residual, {parameters[i].name: parameters[i].values[v] for i, v in row})
            for row in (list(zip(used, values, strict=True)) for values in distinct.tolist())
        ]
        inverse = inverse.reshape(-1)
        keep &= np.array([verdict is not False for verdict in verdicts], dtype=bool)[inverse]
        failures.append(
            (position, np.array([verdict is None for verdict in verdicts], dtype=bool)[inverse])
        )
    for position, failed in failures:
        if (failed & keep).any():
            return table, (position, _first_row(table, failed & keep, len(parameters)))
    return _Table(table.positions, table.rows[keep]), None


def _verdict(residual: Expression, values: dict[str, Value]) -> bool | None:
    try:
        return bool(residual.evaluate(values))
    except ExpressionError:
        return None


def _first_row(
    table: _Table, mask: np.ndarray[Any, np.dtype[np.bool_]], count: int
) -> tuple[int, ...]:
    chosen = dict(zip(table.positions, min(table.rows[mask].tolist()), strict=True))
    return tuple(chosen.get(position, 0) for position in range(count))


def no_rows(count: int) -> Rows:
    """Make an empty result for `count` parameters."""
    return np.empty((0, count), dtype=np.uint16)
