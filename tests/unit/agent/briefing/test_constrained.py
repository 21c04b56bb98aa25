"""What constraints rule out, told of the strictest of them."""

from __future__ import annotations

import pytest

from tuner.agent.briefing.findings import SAMPLE, constrained
from tuner.model.config import Parameter, SearchSpace
from tuner.model.expressions import Expression
from tuner.model.kernel import Workload

SMALL, LARGE = Workload.of({"T": 1}), Workload.of({"T": 1024})
NAMES = {SMALL: {"T": 1}, LARGE: {"T": 1024}}
PARAMETERS = (
    Parameter("block", (64, 128, 256, 512)),
    Parameter("items", (1, 2, 4, 8)),
    Parameter("fast", (False, True)),
)


def space(*texts: str, parameters=PARAMETERS) -> SearchSpace:
    return SearchSpace(parameters, tuple(map(Expression.parse, texts)))


def test_the_strictest_constraint_is_named_with_its_share_and_where_it_is_strictest():
    (found,) = constrained(space("block >= 128", "block * items <= 64 * min(T, 4)"), NAMES)
    assert found.topic == "constraint"
    # At T 1 only 64 x 1 of the 16 products is left, at T 1024 six of them.
    assert found.value == pytest.approx(100 * (15 / 16 + 10 / 16) / 2)
    assert found.text == (
        "The constraint `block * items <= 64 * min(T, 4)` alone rules out 78 % of the 32 "
        "combinations, most on T=1; it costs no trial."
    )


def test_a_large_space_is_judged_by_a_sample():
    many = tuple(Parameter(f"p{n}", (1, 2, 3, 4)) for n in range(8))
    (found,) = constrained(space("p0 == 1 and p7 == 1", parameters=many), NAMES)
    assert found.value == pytest.approx(100 * 15 / 16, abs=1)
    assert f"(of {SAMPLE} looked at)" in found.text


def test_a_constraint_that_cannot_be_asked_counts_as_broken():
    (found,) = constrained(space("16 // (items - 1) > 0 and items > 4"), NAMES)
    assert found.value == pytest.approx(75)


@pytest.mark.parametrize("texts", [(), ("block >= 128",), ("items == 1 or T > 16",)])
def test_what_leaves_most_is_not_told(texts):
    assert not list(constrained(space(*texts), NAMES))
