"""Verdicts over arrays are those of evaluating every row."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.search.test_pool import CONSTRAINTS, NUMBERS, PARAMETERS
from tuner.model.config import Parameter
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, Value
from tuner.search.arrays import Verdict, numbers, verdicts
from tuner.search.counting import substitute
from tuner.search.rows import Rows, TooManyRowsError

SPACE = tuple(Parameter(name, tuple(values)) for name, values in PARAMETERS.items())


def all_rows(parameters: tuple[Parameter, ...]) -> Rows:
    sizes = [range(len(parameter.values)) for parameter in parameters]
    return np.array(list(product(*sizes)), dtype=np.uint16)


def by_evaluation(
    expression: Expression, parameters: tuple[Parameter, ...], row: list[int]
) -> Verdict:
    config = {p.name: p.values[i] for p, i in zip(parameters, row, strict=True)}
    try:
        return Verdict.HOLDS if expression.evaluate(config) else Verdict.BROKEN
    except ExpressionError:
        return Verdict.FAILS


AXES = st.one_of(NUMBERS, st.sampled_from([2**31, 2**53 - 1, 2**53, 2**62, 2**64, -(2**63)]))


@settings(max_examples=250, deadline=None)
@given(CONSTRAINTS, st.fixed_dictionaries({"T": AXES, "K": AXES}))
def test_agree_with_evaluating_every_row(text: str, axes: dict[str, Value]) -> None:
    residual = substitute(Expression.parse(text), axes)
    rows = all_rows(SPACE)
    expected = [by_evaluation(residual, SPACE, row) for row in rows.tolist()]
    assert verdicts(residual, SPACE, rows).tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "a % b == 0",
        "b == 0 or a % b == 0",
        "b != 0 and a % b == 0",
        "(a % b if b else a) < 3",
        "b < 1 < a // b",
        "big * big > big",
        "big + 0.5 > big",
        "(a * 0 + 2 ** 32) ** 63 > big",
        "a ** b + 2 ** b < 40",
        "a ** 0.5 < 2",
        "a << b < 64 or a >> b == 0",
        "a << big < 64",
        "layout == other and a > 1",
        "layout in ('row', 'column')",
        "layout + 'x' == 'rowx'",
        "layout < a",
        "a * ratio % 1 == 0",
        "-a // 3 + ceil_div(a, 3) + abs(-a) > min(a, b, ratio)",
        "not (a and b)",
    ],
)
def test_every_kind_of_expression(text: str) -> None:
    parameters = (
        Parameter("a", (1, 2, 8, 3)),
        Parameter("b", (0, 1, 2, -1)),
        Parameter("big", (2, 2**40, 2**60)),
        Parameter("ratio", (0.5, 1.5)),
        Parameter("layout", ("row", "column")),
        Parameter("other", ("row", "planar")),
    )
    expression = Expression.parse(text)
    rows = all_rows(parameters)
    expected = [by_evaluation(expression, parameters, row) for row in rows.tolist()]
    assert verdicts(expression, parameters, rows).tolist() == expected


def test_what_only_evaluating_can_say_is_not_asked_for_without_end() -> None:
    parameters = tuple(Parameter(name, tuple(range(2, 50))) for name in "abc")
    with pytest.raises(TooManyRowsError):
        verdicts(Expression.parse("(a * b * c) ** 0.5 < 9"), parameters, all_rows(parameters))


def test_numbers_are_those_of_every_row() -> None:
    parameters = (Parameter("a", (1, 2)), Parameter("b", (3, 5)))
    assert numbers(Expression.parse("a * b"), parameters, all_rows(parameters)).tolist() == [
        3,
        5,
        6,
        10,
    ]
    with pytest.raises(TooManyRowsError):
        numbers(Expression.parse("2 ** 60 * a * b"), parameters, all_rows(parameters))
