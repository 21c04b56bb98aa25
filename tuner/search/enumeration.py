"""The valid rows of a space: listed where they are few, else counted and drawn from.

A row holds one value index per parameter. Partial rows are extended by one parameter after the
other, and those are dropped which an already decidable constraint refuses. Where they get too many,
further rows are drawn: a partial row, random values for the rest, and the other constraints decide.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tuner.model.config import Parameter
from tuner.model.errors import InputError
from tuner.model.expressions import Expression, free_names, write_expression
from tuner.search.constraints import ConstraintStatus, Decider, Rows, statuses

# More are sampled. Half a million configs of ten parameters take 10 MB per workload, of which there
# may be ten at once, and a searcher looks at each for a proposal.
MOST_HELD = 500_000
# Partial rows that are kept, which should be many: the fewer, the more draws are refused.
MOST_PARTIAL = 1_000_000
# Rows that are looked at in all before the rest is drawn, and at a time: a second, and some 20 MB.
MOST_TRIED = 10_000_000
_CHUNK = 100_000
# Draws at a time, and in all where constraints refuse most of them.
BATCH = 20_000
MOST_DRAWS = 4_000_000

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class FailingRowError(Exception):
    """Say which constraint cannot be evaluated for a row that the others allow."""

    def __init__(self, constraint: int, row: tuple[int, ...]) -> None:
        super().__init__(constraint, row)
        self.constraint, self.row = constraint, row


def no_rows(count: int) -> Rows:
    return np.empty((0, count), dtype=np.uint16)


def row_keys(rows: Rows) -> np.ndarray[Any, np.dtype[np.bytes_]]:
    """Make one key per row whose order is that of the rows, for any number of parameters."""
    count, width = rows.shape
    if not width:
        return np.zeros(count, dtype="S1")
    return np.ascontiguousarray(rows, dtype=">u2").view(f"S{2 * width}").reshape(count)


def _distinct(rows: Rows) -> Rows:
    firsts = np.unique(row_keys(rows), return_index=True)[1]
    kept: Rows = rows[np.sort(firsts)]
    return kept


class Part(NamedTuple):
    """A constraint, or one side of an `and` in it; `constraint` is the constraint's number."""

    constraint: int
    expression: Expression


@dataclass(frozen=True, slots=True)
class Domains:
    """Parameters as a cache key that keeps `true`, `1` and `1.0` apart."""

    text: str
    parameters: tuple[Parameter, ...] = field(compare=False, repr=False)

    @classmethod
    def of(cls, parameters: tuple[Parameter, ...]) -> Domains:
        return cls(repr([(p.name, p.values) for p in parameters]), parameters)


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """All valid rows, each of them equally likely to be drawn.

    `partial` has a column for each of the parameters at `positions`: all of them, in lexicographic
    order, where the rows are `listed`. `loose` are the constraints that it doesn't decide. `size`
    is the number of valid rows: exact without loose constraints, else estimated from draws.
    `emptied_by` is the number of the first constraint that alone leaves no row.
    """

    parameters: tuple[Parameter, ...]
    parts: tuple[Part, ...]
    positions: tuple[int, ...]
    partial: Rows
    loose: tuple[Part, ...]
    size: int = 0
    listed: bool = False
    emptied_by: int | None = None

    @property
    def combinations(self) -> int:
        rest = set(range(len(self.parameters))) - set(self.positions)
        return len(self.partial) * prod(len(self.parameters[i].values) for i in rest)

    def valid(self, rows: Rows) -> Mask:
        """Say which rows satisfy every constraint; raise `FailingRowError` for one that fails."""
        return satisfying(self.parameters, self.parts, rows)

    def draw(self, rng: np.random.Generator) -> Rows:
        """Draw `BATCH` rows independently, and keep those that are valid."""
        if not len(self.partial):
            return no_rows(len(self.parameters))
        rows = np.empty((BATCH, len(self.parameters)), dtype=np.uint16)
        rows[:, list(self.positions)] = self.partial[rng.integers(len(self.partial), size=BATCH)]
        for i, parameter in enumerate(self.parameters):
            if i not in self.positions:
                rows[:, i] = rng.integers(len(parameter.values), size=BATCH)
        return rows[satisfying(self.parameters, self.loose, rows)] if self.loose else rows

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Draw different rows, every set of them with the same probability.

        Fewer than `count` where loose constraints let too few of `MOST_DRAWS` through.
        """
        wanted = count if self.loose else min(count, self.size)
        drawn = no_rows(len(self.parameters))
        for _ in range(MOST_DRAWS // BATCH):
            drawn = np.concatenate([drawn, self.draw(rng)])
            if len(drawn) >= wanted:
                drawn = _distinct(drawn)[:wanted]
            if len(drawn) == wanted:
                break
        return _distinct(drawn)

    def count_rows(self) -> int:
        """Count the valid rows; raise `InputError` where no draw satisfies the loose constraints.

        Raises `FailingRowError` for a constraint that cannot be evaluated.
        """
        if not self.loose:
            return self.combinations
        bound = [self.parameters[i] for i in self.positions]
        rng = np.random.default_rng(0)
        for part in self.loose:
            if part.expression.names <= {parameter.name for parameter in bound}:
                statuses_there = statuses(part.expression, bound, self.partial)
                replace(self, partial=self.partial[statuses_there == ConstraintStatus.FAILS]).draw(
                    rng
                )
        drawn = found = 0
        for _ in range(MOST_DRAWS // BATCH):
            drawn, found = drawn + BATCH, found + len(self.draw(rng))
            if found >= BATCH // 2:
                break
        if found:
            return max(1, self.combinations * found // drawn)
        texts = " and ".join(f"`{part.expression.text}`" for part in self.loose)
        raise InputError(
            f"{texts} left none of {drawn} configs drawn from {self.combinations}",
            remedy="write it as several constraints over fewer parameters, or leave out values",
        )


@lru_cache(maxsize=8)
def enumerate_rows(domains: Domains, residuals: tuple[Expression, ...]) -> Population:
    """Find the rows that satisfy all residual constraints, and list up to `MOST_HELD`.

    Raises `FailingRowError` for a constraint that cannot be evaluated, and `InputError` where rows
    are too many to list and no draw is valid.
    """
    parameters = domains.parameters
    everything = tuple(range(len(parameters)))
    if not all(parameter.values for parameter in parameters):
        return Population(parameters, (), everything, no_rows(len(parameters)), (), listed=True)
    parts = tuple(
        Part(number, Expression(write_expression(tree), free_names(tree), tree))
        for number, residual in enumerate(residuals)
        for tree in _conjuncts(residual.tree)
    )
    population = _enumerate_rows(parameters, parts)
    if len(population.positions) < len(parameters):
        return replace(population, size=population.count_rows())
    rows = population.partial[:, np.argsort(population.positions)]
    rows = rows[satisfying(parameters, population.loose, rows)]
    population = replace(population, positions=everything, partial=rows, loose=(), size=len(rows))
    if len(rows) > MOST_HELD:
        return population
    rows = rows[np.lexsort(rows.T[::-1])] if parameters else rows
    rows.flags.writeable = False
    emptied_by = None if len(rows) else _emptied_by(parameters, parts)
    return replace(population, partial=rows, listed=True, emptied_by=emptied_by)


@lru_cache(maxsize=8)
def first_rows(population: Population, count: int, seed: int) -> Rows:
    """Draw the sample that a pool starts with, in lexicographic order."""
    rows = population.sample(count, np.random.default_rng(seed))
    rows = rows[np.argsort(row_keys(rows))]
    rows.flags.writeable = False
    return rows


def satisfying(parameters: Sequence[Parameter], parts: Sequence[Part], rows: Rows) -> Mask:
    """Say which rows no constraint excludes; raise `FailingRowError` where one fails on such."""
    left = np.arange(len(rows))
    failed = []
    for part in parts:
        by_row = statuses(part.expression, parameters, rows[left])
        failed.append((part, left[by_row == ConstraintStatus.FAILS]))
        left = left[by_row != ConstraintStatus.BROKEN]
    keep: Mask = np.zeros(len(rows), dtype=bool)
    keep[left] = True
    for part, places in failed:
        allowed = places[keep[places]]
        if len(allowed):
            raise FailingRowError(part.constraint, tuple(rows[allowed[0]].tolist()))
    return keep


def _conjuncts(tree: ast.expr) -> Iterator[ast.expr]:
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for value in tree.values:
            yield from _conjuncts(value)
    else:
        yield tree


def _enumerate_rows(parameters: tuple[Parameter, ...], parts: tuple[Part, ...]) -> Population:
    """Extend rows by as many parameters as the limits allow.

    A constraint that fails on a row doesn't exclude it, and stays among the loose ones.
    """
    order = _order(parameters, parts)
    rows = np.zeros((1, 0), dtype=np.uint16)
    waiting, failing = list(parts), list[Part]()
    tried = 0
    for count in range(len(order) + 1):
        bound = [parameters[i] for i in order[:count]]
        names = {parameter.name for parameter in bound}
        ready = [part for part in waiting if part.expression.names <= names]
        tried += len(rows) * (len(bound[-1].values) if bound else 1)
        extended = _extend_rows(rows, bound, ready) if tried <= MOST_TRIED else None
        if extended is None:
            return Population(parameters, parts, order[: count - 1], rows, tuple(failing + waiting))
        rows, failed = extended
        failing += failed
        waiting = [part for part in waiting if part not in ready]
    return Population(parameters, parts, order, rows, tuple(failing))


def _order(parameters: Sequence[Parameter], parts: Sequence[Part]) -> tuple[int, ...]:
    """Order parameters so that the next constraint is decided after the fewest combinations."""
    order: list[int] = []
    scopes = {
        tuple(i for i, p in enumerate(parameters) if p.name in part.expression.names)
        for part in parts
    }
    while scopes := {tuple(i for i in scope if i not in order) for scope in scopes} - {()}:
        order += min(
            scopes, key=lambda scope: (prod(len(parameters[i].values) for i in scope), scope)
        )
    return (*order, *(i for i in range(len(parameters)) if i not in order))


def _extend_rows(
    rows: Rows, bound: Sequence[Parameter], parts: Sequence[Part]
) -> tuple[Rows, list[Part]] | None:
    """Give each row every value of the last parameter, and drop what breaks a constraint.

    Returns the constraints that failed on some row as well, and None for too many rows.
    """
    size = len(bound[-1].values) if bound else 1
    deciders = [(Decider(part.expression, bound, size * len(rows)), part) for part in parts]
    deciders.sort(key=lambda pair: pair[0].effort)
    kept, failed, total = [], set[Part](), 0
    for start in range(0, max(1, len(rows)), max(1, _CHUNK // size)):
        chunk = rows[start : start + max(1, _CHUNK // size)]
        if bound:
            column = np.tile(np.arange(size, dtype=np.uint16), len(chunk))
            chunk = np.column_stack([np.repeat(chunk, size, axis=0), column])
        for decider, part in deciders:
            by_row = decider.of(chunk)
            if not len(by_row):
                break
            if by_row.max() == ConstraintStatus.FAILS:
                failed.add(part)
            if by_row.min() == ConstraintStatus.BROKEN:
                chunk = chunk[by_row != ConstraintStatus.BROKEN]
        total += len(chunk)
        if total > MOST_PARTIAL:
            return None
        kept.append(chunk)
    return np.concatenate(kept), [part for part in parts if part in failed]


def _emptied_by(parameters: tuple[Parameter, ...], parts: Sequence[Part]) -> int | None:
    for constraint in sorted({part.constraint for part in parts}):
        own = tuple(part for part in parts if part.constraint == constraint)
        names = frozenset[str]().union(*(part.expression.names for part in own))
        population = _enumerate_rows(tuple(p for p in parameters if p.name in names), own)
        if len(population.positions) == len(population.parameters) and not len(population.partial):
            return constraint
    return None
