"""Constraints evaluated for many configs at once, with the results that Python gives for each.

NumPy computes in float64, where whole numbers below 2^53 are exact. What it cannot compute, or
only rounded, `Expression.evaluate` is asked for.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from functools import lru_cache, reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tuner.model.config import Parameter
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, Value, free_names

Rows = np.ndarray[Any, np.dtype[np.uint16]]
Statuses = np.ndarray[Any, np.dtype[np.uint8]]
_Array = np.ndarray[Any, np.dtype[Any]]
_EXACT = 2.0**53
# Parts that arrays cannot compute (text, powers, bits) are tabulated up to so many values.
_MOST_TABULATED = 4096
# Of a table of a constraint: more would take more memory than the rows.
_MOST_COMBINATIONS = 1 << 19


class ConstraintStatus(IntEnum):
    """Whether a constraint holds, is broken, or cannot be evaluated."""

    BROKEN = 0
    HOLDS = 1
    FAILS = 2


def statuses(constraint: Expression, parameters: Sequence[Parameter], rows: Rows) -> Statuses:
    """Return one `ConstraintStatus` per row of value indices, a column for each of `parameters`.

    `constraint` has no other names. Agrees with `Expression.evaluate` on every row.
    """
    return Decider(constraint, parameters, len(rows)).of(rows)


class Decider:
    """Decide a constraint for rows, at most `count` of them in all: one by one, or from a table.

    The table, of all combinations of the values that the constraint depends on, is made where these
    are fewer, and no more than `_MOST_COMBINATIONS`; not before as many rows were asked for, since
    other constraints may leave few of them.
    """

    def __init__(self, constraint: Expression, parameters: Sequence[Parameter], count: int) -> None:
        self.constraint = constraint
        self._used = [i for i, p in enumerate(parameters) if p.name in constraint.names]
        self._chosen = [parameters[i] for i in self._used]
        self._sizes = [len(parameter.values) for parameter in self._chosen]
        self._combinations, self._asked = prod(self._sizes), 0
        self.tabulates = self._combinations <= min(count, _MOST_COMBINATIONS)
        self._repeated = _find_repeats(constraint.tree)
        self._table: Statuses | None = None

    @property
    def effort(self) -> tuple[bool, int]:
        """Order constraints by what it takes to decide them for a row."""
        return not self.tabulates, len(self._used if self.tabulates else self.constraint.text)

    def of(self, rows: Rows) -> Statuses:
        columns = [rows[:, i] for i in self._used]
        self._asked += len(rows)
        if not self.tabulates or self._asked < self._combinations:
            return self._compute(columns, len(rows))
        if self._table is None:
            shape = len(self._sizes), self._combinations
            every = np.indices(self._sizes, dtype=np.uint16).reshape(shape)
            self._table = self._compute([*every], self._combinations)
        return np.broadcast_to(self._table[_places(columns, self._sizes)], len(rows))

    def _compute(self, columns: Sequence[_Array], count: int) -> Statuses:
        tree = self.constraint.tree
        named = {p.name: (p, column) for p, column in zip(self._chosen, columns, strict=True)}
        try:
            with np.errstate(all="ignore"):
                values, unsure = _Evaluation(named, self._repeated).of(tree)
        except _BeyondArraysError:
            values, unsure = np.array(0.0), np.array(True)
        decided = np.where(values != 0, ConstraintStatus.HOLDS, ConstraintStatus.BROKEN)
        decided = np.broadcast_to(decided.astype(np.uint8), count).copy()
        for place in np.flatnonzero(np.broadcast_to(unsure, count)).tolist():
            row = [int(column[place]) for column in columns]
            value = _evaluate_row(self.constraint, self._chosen, row)
            decided[place] = ConstraintStatus.FAILS if value is None else bool(value)
        return decided


def _evaluate_row(
    expression: Expression, parameters: Sequence[Parameter], row: Sequence[int]
) -> Value | None:
    """Evaluate an expression for one row; None where that fails."""
    try:
        return expression.evaluate(
            {p.name: p.values[i] for p, i in zip(parameters, row, strict=True)}
        )
    except ExpressionError:
        return None


def _places(columns: Sequence[_Array], sizes: Sequence[int]) -> _Array:
    """Return where the combination of each row stands among all, in lexicographic order."""
    places: _Array = np.array(0)
    for column, size in zip(columns, sizes, strict=True):
        places = places * size + column
    return places


def _find_repeats(tree: ast.expr) -> frozenset[int]:
    """Find the parts that stand in several places, by their `id`."""
    seen, again = set[int](), set[int]()
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if id(node) in seen:
            again.add(id(node))
        else:
            seen.add(id(node))
            left += (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    return frozenset(again)


class _BeyondArraysError(Exception):
    """Say that a part of an expression has no form over arrays."""


class _Column(NamedTuple):
    """The values of a part of an expression, one per row or one for all.

    Where they are `unsure`, only Python can say what they are, or that it raises.
    """

    values: _Array
    unsure: _Array


_BINARY: dict[type[ast.operator], Callable[[_Array, _Array], _Array]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.FloorDiv: np.floor_divide,
    ast.Div: np.true_divide,
    ast.Mod: np.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[_Array, _Array], _Array]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}


class _Evaluation:
    """Evaluate the parts of one expression over columns of value indices.

    Where Python skips a part (after `and`, `or`, a comparison, in `a if c else b`), its failures
    are skipped as well. What is `repeated` is computed once.
    """

    def __init__(
        self, columns: dict[str, tuple[Parameter, _Array]], repeated: Collection[int]
    ) -> None:
        self._columns, self._repeated = columns, repeated
        self._known: dict[int, _Column] = {}

    def of(self, node: ast.expr) -> _Column:
        """Compute a part; raise `_BeyondArraysError` where it takes too many values to tabulate."""
        if id(node) in self._known:
            return self._known[id(node)]
        try:
            column = self._compute(node)
        except _BeyondArraysError:
            column = self._tabulate_column(node)
        if id(node) in self._repeated:
            self._known[id(node)] = column
        return column

    def _compute(self, node: ast.expr) -> _Column:
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return _looked_up((number,), np.array(0))
            case ast.Name(id=name):
                parameter, indices = self._columns[name]
                return _looked_up(parameter.values, indices)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _binary(type(op), self.of(left), self.of(right))
            case ast.UnaryOp(op=op, operand=operand):
                values, unsure = self.of(operand)
                if isinstance(op, ast.Not):
                    return _Column(np.asarray(values == 0, float), unsure)
                return _Column(-values if isinstance(op, ast.USub) else values, unsure)
            case ast.BoolOp(op=op, values=parts):
                result = self.of(parts[-1])
                for part in reversed(parts[:-1]):
                    first = self.of(part)
                    either = (first, result) if isinstance(op, ast.Or) else (result, first)
                    result = _choice(first, *either)
                return result
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return _choice(self.of(test), self.of(body), self.of(orelse))
            case ast.Compare():
                return self._compare(node)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return _call(name, [self.of(argument) for argument in arguments])
            case _:
                raise _BeyondArraysError

    def _compare(self, node: ast.Compare) -> _Column:
        left, unsure = self.of(node.left)
        holds: _Array = np.array(True)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            if isinstance(comparator, ast.Tuple | ast.List):
                items = [self.of(item) for item in comparator.elts]
                equal = (left == item.values for item in items)
                satisfied = reduce(np.logical_or, equal, np.array(False)) ^ isinstance(
                    op, ast.NotIn
                )
                reached = reduce(np.logical_or, (item.unsure for item in items), np.array(False))
            else:
                right, reached = self.of(comparator)
                satisfied = _COMPARE[type(op)](left, right)
                left = right
            unsure = unsure | (holds & reached)
            holds = holds & satisfied
        return _Column(holds.astype(float), unsure)

    def _tabulate_column(self, node: ast.expr) -> _Column:
        used = free_names(node)
        chosen = [column for name, column in self._columns.items() if name in used]
        parameters = [parameter for parameter, _ in chosen]
        sizes = [len(parameter.values) for parameter in parameters]
        if isinstance(node, ast.Tuple | ast.List) or prod(sizes) > _MOST_TABULATED:
            raise _BeyondArraysError
        expression = Expression("", used, node)
        table = tuple(_evaluate_row(expression, parameters, row) for row in np.ndindex(*sizes))
        return _looked_up(table, _places([indices for _, indices in chosen], sizes))


def _looked_up(table: tuple[Value | None, ...], places: _Array) -> _Column:
    """Look numbers up in a table, of which None fails; raise `_BeyondArraysError` for text."""
    values, unsure = _arrays(table)
    return _Column(values[places], unsure[places] if unsure.any() else np.array(False))


# `true`, `1` and `1.0`, which are equal here, are the same number.
@lru_cache(maxsize=64)
def _arrays(table: tuple[Value | None, ...]) -> tuple[_Array, _Array]:
    if any(isinstance(value, str) for value in table):
        raise _BeyondArraysError
    exact = [None if v is None or isinstance(v, str) or abs(v) >= _EXACT else v for v in table]
    unsure = np.array([value is None for value in exact])
    return np.array([value or 0 for value in exact], float), unsure


def _binary(op: type[ast.operator], left: _Column, right: _Column) -> _Column:
    values = _BINARY[op](left.values, right.values)
    unsure = left.unsure | right.unsure
    # A value that is not a number, which is below nothing, is as unsure as a large one.
    if values.size and not (values.max() < _EXACT and values.min() > -_EXACT):
        unsure = unsure | ~(np.abs(values) < _EXACT)
    return _Column(values, unsure)


def _choice(test: _Column, body: _Column, orelse: _Column) -> _Column:
    truth = test.values != 0
    unsure = test.unsure | np.where(truth, body.unsure, orelse.unsure)
    return _Column(np.where(truth, body.values, orelse.values), unsure)


def _call(name: str, arguments: list[_Column]) -> _Column:
    values, unsure = arguments[0]
    match name:
        case "ceil_div":
            quotient = _binary(ast.FloorDiv, _Column(-values, unsure), arguments[1])
            return _Column(-quotient.values, quotient.unsure)
        case "abs":
            return _Column(np.abs(values), unsure)
        case "min" | "max":
            fold = np.minimum if name == "min" else np.maximum
            values = reduce(fold, (column.values for column in arguments))
            return _Column(values, reduce(np.logical_or, (c.unsure for c in arguments)))
        case _:
            raise _BeyondArraysError
