"""Constraints evaluated for many configs at once, with the results that Python gives for each.

NumPy computes in float64, where whole numbers below 2^53 are exact. What it cannot compute, or
only rounded, `Expression.evaluate` is asked for.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, free_names

if TYPE_CHECKING:
    from tuner.model.config import Parameter
    from tuner.model.expressions import Value

Rows = np.ndarray[Any, np.dtype[np.uint16]]
_Array = np.ndarray[Any, np.dtype[Any]]
_EXACT = 2.0**53
# Parts that arrays cannot compute (text, powers, bits) are tabulated up to so many values.
_MOST_TABULATED = 4096


class ConstraintStatus(IntEnum):
    """Whether a constraint holds, is broken, or cannot be evaluated."""

    BROKEN = 0
    HOLDS = 1
    FAILS = 2


def statuses(
    constraint: Expression, parameters: Sequence[Parameter], rows: Rows
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return one `ConstraintStatus` per row of value indices, a column for each of `parameters`.

    `constraint` has no other names. Agrees with `Expression.evaluate` on every row.
    """
    used = [i for i, parameter in enumerate(parameters) if parameter.name in constraint.names]
    chosen = [parameters[i] for i in used]
    sizes = [len(parameter.values) for parameter in chosen]
    columns = [rows[:, i] for i in used]
    if prod(sizes) > len(rows):
        return _statuses(constraint, chosen, columns, len(rows))
    combinations = np.indices(sizes, dtype=np.uint16).reshape(len(sizes), prod(sizes))
    table = _statuses(constraint, chosen, list(combinations), prod(sizes))
    return np.broadcast_to(table[_places(columns, sizes)], len(rows))


def _statuses(
    constraint: Expression, parameters: Sequence[Parameter], columns: Sequence[_Array], count: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    evaluation = _Evaluation(
        {p.name: (p, column) for p, column in zip(parameters, columns, strict=True)}
    )
    try:
        with np.errstate(all="ignore"):
            values, state = evaluation.of(constraint.tree)
    except _BeyondArraysError:
        values, state = np.array(0.0), _UNSURE
    told = np.where(values != 0, ConstraintStatus.HOLDS, ConstraintStatus.BROKEN)
    told = np.where(state == _FAILS, ConstraintStatus.FAILS, told).astype(np.uint8)
    told = np.broadcast_to(told, count).copy()
    for place in np.flatnonzero(np.broadcast_to(state == _UNSURE, count)).tolist():
        row = [int(column[place]) for column in columns]
        value = _evaluated(constraint, parameters, row)
        told[place] = ConstraintStatus.FAILS if value is None else bool(value)
    return told


def _evaluated(
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


class _BeyondArraysError(Exception):
    """Say that a part of an expression has no form over arrays."""


class _Column(NamedTuple):
    """The values of a part of an expression, one per row or one for all, and how sure they are."""

    values: _Array
    state: _Array


# That the numbers are Python's, that only Python can say, and that Python raises.
_SURE, _UNSURE, _FAILS = (np.array(state, dtype=np.uint8) for state in range(3))
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
    are skipped as well.
    """

    def __init__(self, columns: dict[str, tuple[Parameter, _Array]]) -> None:
        self._columns = columns

    def of(self, node: ast.expr) -> _Column:
        """Compute a part; raise `_BeyondArraysError` where it takes too many values to tabulate."""
        try:
            return self._computed(node)
        except _BeyondArraysError:
            return self._tabulated(node)

    def _computed(self, node: ast.expr) -> _Column:
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return _looked_up([number], np.array(0))
            case ast.Name(id=name):
                parameter, indices = self._columns[name]
                return _looked_up(parameter.values, indices)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _binary(type(op), self.of(left), self.of(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                values, state = self.of(operand)
                return _Column(np.asarray(values == 0, float), state)
            case ast.UnaryOp(op=op, operand=operand):
                values, state = self.of(operand)
                return _Column(-values if isinstance(op, ast.USub) else values, state)
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
        left, state = self.of(node.left), _SURE
        holds: _Array = np.array(True)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            if isinstance(comparator, ast.Tuple | ast.List):
                items = [self.of(item) for item in comparator.elts]
                equal = (left.values == item.values for item in items)
                found: _Array = reduce(np.logical_or, equal, np.array(False))
                found = found ^ isinstance(op, ast.NotIn)
                reached: _Array = reduce(np.maximum, (item.state for item in items), left.state)
            else:
                right = self.of(comparator)
                found = _COMPARE[type(op)](left.values, right.values)
                reached = np.maximum(left.state, right.state)
                left = right
            state = np.where(holds & (state == 0), reached, state)
            holds = holds & found
        return _Column(holds.astype(float), state)

    def _tabulated(self, node: ast.expr) -> _Column:
        used = free_names(node)
        chosen = [column for name, column in self._columns.items() if name in used]
        parameters = [parameter for parameter, _ in chosen]
        sizes = [len(parameter.values) for parameter in parameters]
        if isinstance(node, ast.Tuple | ast.List) or prod(sizes) > _MOST_TABULATED:
            raise _BeyondArraysError
        expression = Expression("", used, node)
        table = [_evaluated(expression, parameters, row) for row in np.ndindex(*sizes)]
        return _looked_up(table, _places([indices for _, indices in chosen], sizes))


def _looked_up(table: Sequence[Value | None], places: _Array) -> _Column:
    """Look numbers up in a table, of which None fails; raise `_BeyondArraysError` for text."""
    if any(isinstance(value, str) for value in table):
        raise _BeyondArraysError
    exact, states = [], []
    for value in table:
        fits = value is not None and not isinstance(value, str) and abs(value) < _EXACT
        exact.append(value if fits else 0)
        states.append(_FAILS if value is None else _SURE if fits else _UNSURE)
    state = np.array(states, dtype=np.uint8)
    return _Column(np.array(exact, float)[places], state[places] if state.any() else _SURE)


def _binary(op: type[ast.operator], left: _Column, right: _Column) -> _Column:
    divisor = right.values
    state = np.maximum(left.state, right.state)
    if op in (ast.FloorDiv, ast.Div, ast.Mod):
        state = np.where((state == 0) & (divisor == 0), _FAILS, state)
        divisor = np.where(divisor == 0, 1.0, divisor)
    values = _BINARY[op](left.values, divisor)
    # not `>=`: a value that is not a number is as unsure as a large one
    return _Column(values, np.where((state > 0) | (np.abs(values) < _EXACT), state, _UNSURE))


def _choice(test: _Column, body: _Column, orelse: _Column) -> _Column:
    truth = test.values != 0
    state = np.where(test.state > 0, test.state, np.where(truth, body.state, orelse.state))
    return _Column(np.where(truth, body.values, orelse.values), state)


def _call(name: str, arguments: list[_Column]) -> _Column:
    values, state = arguments[0]
    match name:
        case "ceil_div":
            values, state = _binary(ast.FloorDiv, _Column(-values, state), arguments[1])
            return _Column(-values, state)
        case "abs":
            return _Column(np.abs(values), state)
        case "min" | "max":
            fold = np.minimum if name == "min" else np.maximum
            state = reduce(np.maximum, (column.state for column in arguments))
            return _Column(reduce(fold, (column.values for column in arguments)), state)
        case _:
            raise _BeyondArraysError
