"""The arithmetic of expressions over arrays, with the places where Python would differ or fail."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tuner.expressions import Value

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
