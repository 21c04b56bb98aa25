"""Constraints over arrays give what evaluating every row gives."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.search.test_pool import CONSTRAINTS, NUMBERS, PARAMETERS
from tuner.model.config import Parameter
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, Value, substitute
from tuner.search.constraints import ConstraintStatus, Rows, statuses

SPACE = tuple(Parameter(name, tuple(values)) for name, values in PARAMETERS.items())


def all_rows(parameters: tuple[Parameter, ...]) -> Rows:
    sizes = [range(len(parameter.values)) for parameter in parameters]
    return np.array(list(product(*sizes)), dtype=np.uint16)


def by_evaluation(
    expression: Expression, parameters: tuple[Parameter, ...], row: list[int]
) -> ConstraintStatus:
    config = {p.name: p.values[i] for p, i in zip(parameters, row, strict=True)}
    try:
        return ConstraintStatus.HOLDS if expression.evaluate(config) else ConstraintStatus.BROKEN
    except ExpressionError:
        return ConstraintStatus.FAILS


AXES = st.one_of(NUMBERS, st.sampled_from([2**31, 2**53 - 1, 2**53, 2**62, 2**64, -(2**63)]))


@settings(max_examples=250, deadline=None)
@given(CONSTRAINTS, st.fixed_dictionaries({"T": AXES, "K": AXES}))
def test_agree_with_evaluating_every_row(text: str, axes: dict[str, Value]) -> None:
    residual = substitute(Expression.parse(text), axes)
    rows = all_rows(SPACE)
    expected = [by_evaluation(residual, SPACE, row) for row in rows.tolist()]
    assert statuses(residual, SPACE, rows).tolist() == expected


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
    assert statuses(expression, parameters, rows).tolist() == expected


@pytest.mark.parametrize("count", [5, 2000])
def test_few_rows_and_many_are_evaluated_alike(count: int) -> None:
    parameters = tuple(Parameter(name, tuple(range(-2, 8))) for name in "abc")
    expression = Expression.parse("a % b == 0 and (a * b * c) ** 0.5 < 9")
    rows = np.random.default_rng(1).integers(10, size=(count, 3), dtype=np.uint16)
    expected = [by_evaluation(expression, parameters, row) for row in rows.tolist()]
    assert len(set(expected)) == (2 if count == 5 else 3)
    assert statuses(expression, parameters, rows).tolist() == expected
