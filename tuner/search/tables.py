"""Each constraint as a table of the rows that satisfy it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tuner.expressions import Expression, free_names
from tuner.search.derived import Derivation
from tuner.search.joint import Joint, joint_of, widest_table
from tuner.search.relations import Relation
from tuner.search.rows import Rows, TooManyRowsError
from tuner.search.verdicts import Verdict, verdicts

if TYPE_CHECKING:
    from tuner.space import Parameter

# Combinations that one constraint is tried on: 0.1 s, and 20 MB for eight parameters.
MOST_TRIED = 1_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """A constraint, or one side of an `and` in it, with the positions of its parameters.

    `constraint` is the number of the constraint that it comes from.
    """

    constraint: int
    residual: Expression
    scope: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A constraint as the rows that don't break it, and those of them that it fails on.

    `steps` say how the derived parameters in it follow from others (tuner/search/derived.py).
    """

    satisfying: Relation
    failing: Relation
    steps: tuple[Relation, ...] = ()

    @property
    def relations(self) -> tuple[Relation, ...]:
        """All that has to be joined."""
        return (self.satisfying, *self.steps)

    def share(self, sizes: Sequence[int]) -> float:
        """The share of the combinations of its parameters that satisfies it."""
        return len(self.satisfying.rows) / prod(sizes[i] for i in self.satisfying.positions)


def parts_of(parameters: Sequence[Parameter], residuals: Sequence[Expression]) -> tuple[Part, ...]:
    """Split constraints at `and`: smaller ones take smaller tables."""
    return tuple(
        _part(parameters, number, tree)
        for number, residual in enumerate(residuals)
        for tree in _conjuncts(residual.tree)
    )


def tables_of(derivation: Derivation, parts: Sequence[Part]) -> dict[Part, Table]:
    """Tabulate each constraint over its own parameters, which may add derived ones.

    Left out is a constraint over too many combinations, unless those within it exclude enough or
    it can be broken up.
    """
    sizes = [len(parameter.values) for parameter in derivation.parameters]
    tables: dict[Part, Table] = {}
    for part in sorted(parts, key=lambda part: prod(sizes[i] for i in part.scope)):
        within = [other for other in tables if set(other.scope) < set(part.scope)]
        try:
            tables[part] = _tabulated(derivation, part, within)
        except TooManyRowsError:
            continue
    return tables


def joint_of_tables(derivation: Derivation, tables: Sequence[Sequence[Relation]]) -> Joint:
    """Join tables; raise `TooManyRowsError` where that takes too large ones on the way."""
    return joint_of(*_joinable(derivation, tables))


def joinable(derivation: Derivation, tables: dict[Part, Table], limit: float) -> dict[Part, Table]:
    """Choose tables whose join should take no table of more than `limit` rows, tightest first."""

    def is_joinable(chosen: dict[Part, Table]) -> bool:
        relations = [table.relations for table in chosen.values()]
        return widest_table(*_joinable(derivation, relations)) <= limit

    if is_joinable(tables):
        return tables
    sizes = [len(parameter.values) for parameter in derivation.parameters]
    kept: dict[Part, Table] = {}
    for part, table in sorted(tables.items(), key=lambda item: item[1].share(sizes)):
        if is_joinable({**kept, part: table}):
            kept[part] = table
    return kept


def _joinable(
    derivation: Derivation, tables: Sequence[Sequence[Relation]]
) -> tuple[list[int], list[Relation]]:
    relations = [relation for table in tables for relation in table]
    mentioned = {position for relation in relations for position in relation.positions}
    # A derived parameter that nothing mentions would multiply the number of rows.
    sizes = [
        len(parameter.values) if i < derivation.given or i in mentioned else 1
        for i, parameter in enumerate(derivation.parameters)
    ]
    return sizes, relations


def _conjuncts(tree: ast.expr) -> Iterator[ast.expr]:
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for value in tree.values:
            yield from _conjuncts(value)
    else:
        yield tree


def _part(parameters: Sequence[Parameter], constraint: int, tree: ast.expr) -> Part:
    used = free_names(tree)
    scope = tuple(i for i, parameter in enumerate(parameters) if parameter.name in used)
    return Part(constraint, Expression(ast.unparse(tree), used, tree), scope)


def _tabulated(derivation: Derivation, part: Part, within: Sequence[Part]) -> Table:
    try:
        return _direct(derivation, part, within)
    except TooManyRowsError:
        return _stepwise(derivation, part)


def _direct(derivation: Derivation, part: Part, within: Sequence[Part]) -> Table:
    positions, rows = _grid(derivation.parameters, part.scope, within)
    told = verdicts(part.residual, [derivation.parameters[i] for i in positions], rows)
    return Table(
        Relation.of(positions, rows[told != Verdict.BROKEN]),
        Relation.of(positions, rows[told == Verdict.FAILS]),
    )


def _stepwise(derivation: Derivation, part: Part) -> Table:
    known = len(derivation.relations)
    tree = derivation.shortened(part.residual.tree)
    short = _part(derivation.parameters, part.constraint, tree)
    return replace(_direct(derivation, short, ()), steps=tuple(derivation.relations[known:]))


def _grid(
    parameters: Sequence[Parameter], scope: Sequence[int], within: Sequence[Part]
) -> tuple[tuple[int, ...], Rows]:
    """Combine the values of some parameters, one by one, leaving out what `within` excludes."""
    inner = [position for part in within for position in part.scope]
    order = tuple(dict.fromkeys([*inner, *scope]))
    rows = np.zeros((1, 0), dtype=np.uint16)
    waiting = list(within)
    for count, position in enumerate(order, 1):
        size = len(parameters[position].values)
        if len(rows) * size > MOST_TRIED:
            raise TooManyRowsError
        column = np.tile(np.arange(size, dtype=np.uint16), len(rows))
        rows = np.column_stack([np.repeat(rows, size, axis=0), column])
        bound = [parameters[i] for i in order[:count]]
        for part in [part for part in waiting if set(part.scope) <= set(order[:count])]:
            rows = rows[verdicts(part.residual, bound, rows) != Verdict.BROKEN]
            waiting.remove(part)
    return order, rows
