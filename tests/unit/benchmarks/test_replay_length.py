"""What replay_length.py and its part of the page compute of times; those need a GPU."""

from __future__ import annotations

import pytest
import replay_length


def test_times_scatter_about_their_configs_median() -> None:
    searches = [{"a": 1.0, "b": 5.0}, {"a": 1.01, "b": 5.0, "c": 9.0}, {"a": 0.99, "b": 5.0}]
    assert replay_length.scatter(searches) == pytest.approx((2 * 0.01**2 / 6) ** 0.5)
