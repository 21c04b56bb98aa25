"""What a constraint says of many rows of value indices at once."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.errors import ExpressionError
from tuner.expressions import Expression, free_names
from tuner.search.arrays import (
    BINARY,
    COMPARE,
    FAILS,
    SURE,
    UNSURE,
    Array,
    BeyondArraysError,
    Column,
    binary,
    call,
    choice,
    tabulated,
    truth_of,
    unary,
)
from tuner.search.rows import TooManyRowsError

if TYPE_CHECKING:
    from tuner.expressions import Value
    from tuner.search.rows import Rows
    from tuner.space import Parameter

# Parts that arrays cannot compute (text, powers of floats) are tabulated up to so many values.
_MOST_TABULATED = 4096
# `Expression.evaluate` takes about 5 us.
_MOST_ASKED = 50_000


class Verdict(IntEnum):
    """Whether a constraint holds, is broken, or cannot be evaluated."""

    BROKEN = 0
    HOLDS = 1
    FAILS = 2


def verdicts(
    residual: Expression, parameters: Sequence[Parameter], rows: Rows
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return one `Verdict` per row; the columns of `rows` are those of `parameters`.

    Agrees with `Expression.evaluate` on every row: what arrays cannot say, it is asked for, and
    `TooManyRowsError` raised where that would take long.
    """
    used = [i for i, parameter in enumerate(parameters) if parameter.name in residual.names]
    evaluation = _Evaluation({parameters[i].name: (parameters[i], rows[:, i]) for i in used})
    try:
        with np.errstate(all="ignore"):
            column = evaluation.of(residual.tree)
    except BeyondArraysError:
        column = Column(np.array(False), UNSURE)
    told = np.where(truth_of(column.values), Verdict.HOLDS, Verdict.BROKEN)
    told = np.where(column.state == FAILS, Verdict.FAILS, told).astype(np.uint8)
    told = np.broadcast_to(told, len(rows)).copy()
    unsure = np.flatnonzero(np.broadcast_to(column.state == UNSURE, len(rows)))
    if len(unsure):
        distinct, inverse = np.unique(rows[unsure][:, used], axis=0, return_inverse=True)
        if len(distinct) > _MOST_ASKED:
            raise TooManyRowsError
        chosen = [parameters[i] for i in used]
        asked = [_verdict(residual, chosen, row) for row in distinct.tolist()]
        told[unsure] = np.array(asked, dtype=np.uint8)[inverse.reshape(-1)]
    return told


def numbers(expression: Expression, parameters: Sequence[Parameter], rows: Rows) -> Array:
    """Return the value of an expression per row; the columns of `rows` are those of `parameters`.

    Raises `TooManyRowsError` where that is not a number, or one that arrays round, on every row.
    """
    columns = {p.name: (p, column) for p, column in zip(parameters, rows.T, strict=True)}
    try:
        with np.errstate(all="ignore"):
            column = _Evaluation(columns).of(expression.tree)
    except BeyondArraysError as error:
        raise TooManyRowsError from error
    if column.state.any():
        raise TooManyRowsError
    return np.broadcast_to(column.values, len(rows))


def _verdict(residual: Expression, parameters: Sequence[Parameter], row: Sequence[int]) -> Verdict:
    try:
        value = residual.evaluate(
            {p.name: p.values[i] for p, i in zip(parameters, row, strict=True)}
        )
    except ExpressionError:
        return Verdict.FAILS
    return Verdict.HOLDS if value else Verdict.BROKEN


class _Evaluation:
    """Evaluate the parts of one expression over columns of value indices.

    Where Python skips a part (after `and`, `or`, a comparison, in `a if c else b`), its failures
    are skipped as well. Numbers that arrays would round are left to Python as unsure.
    """

    def __init__(self, columns: dict[str, tuple[Parameter, Array]]) -> None:
        self._columns = columns

    def of(self, node: ast.expr) -> Column:
        """Compute a part; raise `BeyondArraysError` where it takes too many values to tabulate."""
        try:
            return self._computed(node)
        except BeyondArraysError:
            return self._tabulated(node)

    def _computed(self, node: ast.expr) -> Column:
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return tabulated([number], np.array(0))
            case ast.Name(id=name):
                parameter, indices = self._columns[name]
                return tabulated(parameter.values, indices)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return binary(type(op), self.of(left), self.of(right))
            case ast.UnaryOp(op=op, operand=operand):
                return unary(op, self.of(operand))
            case ast.BoolOp(op=op, values=values):
                return self._bool_op(values, decisive=isinstance(op, ast.Or))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return choice(self.of(test), self.of(body), self.of(orelse))
            case ast.Compare():
                return self._compare(node)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return call(name, [self.of(argument) for argument in arguments])
            case _:
                raise BeyondArraysError

    def _bool_op(self, parts: list[ast.expr], *, decisive: bool) -> Column:
        result = self.of(parts[-1])
        for part in reversed(parts[:-1]):
            first = self.of(part)
            result = choice(first, first, result) if decisive else choice(first, result, first)
        return result

    def _compare(self, node: ast.Compare) -> Column:
        left, state = self.of(node.left), SURE
        holds: Array = np.array(True)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            if isinstance(comparator, ast.Tuple | ast.List):
                right = Column(*self._membership(left, comparator.elts))
                found = right.values ^ isinstance(op, ast.NotIn)
            else:
                right = self.of(comparator)
                found = COMPARE[type(op)](left.values, right.values)
            reached = np.maximum(left.state, right.state)
            state = np.where(holds & (state == 0), reached, state)
            holds, left = holds & found, right
        return Column(holds, state)

    def _membership(self, left: Column, items: list[ast.expr]) -> tuple[Array, Array]:
        found, state = np.array(False), left.state
        for item in map(self.of, items):
            found, state = found | (left.values == item.values), np.maximum(state, item.state)
        return found, state

    def _tabulated(self, node: ast.expr) -> Column:
        used = free_names(node)
        names = [name for name in self._columns if name in used]
        parameters = [self._columns[name][0] for name in names]
        sizes = [len(parameter.values) for parameter in parameters]
        if isinstance(node, ast.Tuple | ast.List) or prod(sizes) > _MOST_TABULATED:
            raise BeyondArraysError
        expression = Expression(ast.unparse(node), used, node)
        table: list[Value | None] = []
        for row in np.ndindex(*sizes):
            values = {p.name: p.values[i] for p, i in zip(parameters, row, strict=True)}
            try:
                table.append(expression.evaluate(values))
            except ExpressionError:
                table.append(None)
        places: Array = np.array(0)
        for name, size in zip(names, sizes, strict=True):
            places = places * size + self._columns[name][1]
        return tabulated(table, places)
