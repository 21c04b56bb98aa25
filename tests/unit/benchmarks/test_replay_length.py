"""What replay_length.py and its part of the page compute of times; those need a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import replay_length
import search_section


def test_times_scatter_about_their_configs_median() -> None:
    searches = [{"a": 1.0, "b": 5.0}, {"a": 1.01, "b": 5.0, "c": 9.0}, {"a": 0.99, "b": 5.0}]
    assert replay_length.scatter(searches) == pytest.approx((2 * 0.01**2 / 6) ** 0.5)


def chain(calls: int, scatter_us: float, round_ms: float) -> dict[str, Any]:
    return {
        "workload": "T=1",
        "calls": calls,
        "costs_us": [2.0, 1.0],
        "scatter_us": scatter_us,
        "round_ms": round_ms,
    }


def test_the_page_compares_chains_that_take_as_long() -> None:
    content = {
        "alone": [
            {"replay_us": 300.0, "seconds": [1.8, 1.7], "scatter": 0.0021, "best_us": [4.2]},
            {"replay_us": 150.0, "seconds": [1.4, 1.6], "scatter": 0.0022, "best_us": [4.2]},
        ],
        "chains": [chain(32, 0.1, 4.0), chain(8, 0.2, 1.0)],
        "environment": {"device": "NVIDIA H200"},
    }
    page = list(search_section.replay_length(content))
    assert "| 150 us | 1.50 | 0.22% |" in page
    assert "| 32 | 4.0 | 0.100 | 1.00x |" in page
    assert "| 8 | 1.0 | 0.200 | 1.00x |" in page, "half the calls take half the time"
