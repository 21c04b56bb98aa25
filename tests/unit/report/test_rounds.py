"""What a round's template and its search gained, apart."""

from __future__ import annotations

import pytest

from tuner.report import rounds


@pytest.mark.parametrize(
    ("often", "parts", "whole"),
    [({}, (10.0**0.5, 2.0**0.5), 20.0**0.5), ({"a": 1.0, "b": 1.0}, (1.009, 1.998), 2.016)],
    ids=["workloads", "mix"],
)
def test_what_the_template_and_the_search_gained_multiply_to_what_the_round_did(
    often: dict[str, float], parts: tuple[float, float], whole: float
) -> None:
    baseline, default, best = {"a": 100.0, "b": 1.0}, {"a": 100.0, "b": 0.1}, {"a": 50.0, "b": 0.1}
    keys = ["a", "b"]
    found = (
        rounds._compare(baseline, default, keys, often),
        rounds._compare(default, best, keys, often),
    )
    assert found == pytest.approx(parts, rel=1e-3)
    assert found[0] * found[1] == pytest.approx(whole, rel=1e-3)
