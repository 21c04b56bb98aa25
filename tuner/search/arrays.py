"""The arithmetic of expressions over arrays, with the places where Python would differ or fail."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, free_names
from tuner.search.rows import TooManyRowsError

if TYPE_CHECKING:
    from tuner.model.config import Parameter
    from tuner.model.expressions import Value
    from tuner.search.rows import Rows

Array = np.ndarray[Any, np.dtype[Any]]
# Whole numbers up to here are exact as floats too, so that integers and floats agree with Python.
_EXACT = 2.0**53


class BeyondArraysError(Exception):
    """Say that a part of an expression has no form over arrays."""


class Column(NamedTuple):
    """The values of a part of an expression, one per row or one for all, and how sure they are."""

    values: Array
    state: Array


# That the numbers are Python's, that only Python can say, and that Python raises.
SURE, UNSURE, FAILS = (np.array(state, dtype=np.uint8) for state in range(3))


def tabulated(table: Sequence[Value | None], places: Array) -> Column:
    """Look numbers up in a table, of which None fails; raise `BeyondArraysError` for text."""
    if any(isinstance(value, str) for value in table):
        raise BeyondArraysError
    exact, states = [], []
    for value in table:
        fits = value is not None and not isinstance(value, str) and abs(value) < _EXACT
        exact.append(value if fits else 0)
        states.append(FAILS if value is None else SURE if fits else UNSURE)
    state = np.array(states, dtype=np.uint8)
    return Column(np.array(exact)[places], state[places] if state.any() else SURE)


def choice(test: Column, body: Column, orelse: Column) -> Column:
    """Compute `body if test else orelse`; failures of the other side don't count."""
    truth = truth_of(test.values)
    state = np.where(test.state > 0, test.state, np.where(truth, body.state, orelse.state))
    return Column(np.where(truth, body.values, orelse.values), state)


def truth_of(values: Array) -> Array:
    """Say which values are true."""
    return np.asarray(values != 0)


def _whole(values: Array) -> Array:
    return values.astype(np.int64) if values.dtype == np.bool_ else values


def _bits(values: Array) -> Array:
    if values.dtype.kind == "f":
        raise BeyondArraysError
    return _whole(values)


def binary(op: type[ast.operator], left: Column, right: Column) -> Column:
    """Apply one of the operators in `BINARY`."""
    values, size, state = BINARY[op](_whole(left.values), _whole(right.values))
    # not `>=`: a size that is not a number is as unsure as a large one
    state = np.maximum(state, np.where(np.abs(size) < _EXACT, SURE, UNSURE))
    before = np.maximum(left.state, right.state)
    return Column(values, np.where(before > 0, before, state))


# Each returns the values, their size as floats (integers wrap round) and where they fail.
_Operation = Callable[[Array, Array], tuple[Array, Array, Array]]


def _plain(function: Callable[[Array, Array], Array]) -> _Operation:
    return lambda a, b: (function(a, b), function(a.astype(float), b.astype(float)), SURE)


def _division(function: Callable[[Array, Array], Array]) -> _Operation:
    def divide(a: Array, b: Array) -> tuple[Array, Array, Array]:
        values = function(a, np.where(b == 0, 1, b))
        return values, values.astype(float), np.where(b == 0, FAILS, SURE)

    return divide


def _bitwise(function: Callable[[Array, Array], Array]) -> _Operation:
    def combine(a: Array, b: Array) -> tuple[Array, Array, Array]:
        values = function(_bits(a), _bits(b))
        return values, values.astype(float), SURE

    return combine


def _shift(a: Array, b: Array, *, left: bool) -> tuple[Array, Array, Array]:
    a, b = _bits(a), _bits(b)
    # 62 bits at most stay defined; whatever they push out of a number is caught by its size.
    places = np.clip(b, 0, 62)
    values = a << places if left else a >> places
    size = a.astype(float) * 2.0**places if left else values.astype(float)
    failed = np.where(b < 0, FAILS, np.where(left & (b > 62), UNSURE, SURE))
    return values, size, failed


def _power(a: Array, b: Array) -> tuple[Array, Array, Array]:
    a, b = _bits(a), _bits(b)
    unsure = np.where((b < 0) | (b > 62) | (np.abs(a) > 2**32), UNSURE, SURE)
    places = np.clip(b, 0, 62)
    return a**places, a.astype(float) ** places, unsure


def unary(op: ast.unaryop, operand: Column) -> Column:
    """Apply a sign, or `not`."""
    if isinstance(op, ast.Not):
        return Column(~truth_of(operand.values), operand.state)
    values = _whole(operand.values)
    return Column(-values if isinstance(op, ast.USub) else values, operand.state)


def call(name: str, arguments: list[Column]) -> Column:
    """Call one of the functions of expressions."""
    if name == "ceil_div":
        a, b = arguments
        return unary(ast.USub(), binary(ast.FloorDiv, unary(ast.USub(), a), b))
    if name == "abs":
        return Column(np.abs(_whole(arguments[0].values)), arguments[0].state)
    if name not in ("min", "max"):
        raise BeyondArraysError
    fold = np.minimum if name == "min" else np.maximum
    values, state = arguments[0]
    for other in arguments[1:]:
        values, state = fold(values, other.values), np.maximum(state, other.state)
    return Column(values, state)


BINARY: dict[type[ast.operator], _Operation] = {
    ast.Add: _plain(np.add),
    ast.Sub: _plain(np.subtract),
    ast.Mult: _plain(np.multiply),
    ast.FloorDiv: _division(np.floor_divide),
    ast.Div: _division(np.true_divide),
    ast.Mod: _division(np.mod),
    ast.BitAnd: _bitwise(np.bitwise_and),
    ast.BitOr: _bitwise(np.bitwise_or),
    ast.BitXor: _bitwise(np.bitwise_xor),
    ast.LShift: lambda a, b: _shift(a, b, left=True),
    ast.RShift: lambda a, b: _shift(a, b, left=False),
    ast.Pow: _power,
}
COMPARE: dict[type[ast.cmpop], Callable[[Array, Array], Array]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}


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
