"""The tables on whole steps of an engine and on calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import steps_section

TUNED = {"kinds": {"tuned rmsnorm": {"us": 8.0}, "GEMM": {"us": 500.0}}}


def case(median: float, low: float) -> dict[str, Any]:
    return {
        "us": {"sglang": 1000.0, "tuned": 1000.0 / median},
        "speedup": {"tuned": {"against": "sglang", "median": median, "interval": [low, 1.1]}},
        "calls": {"tuned": {"rmsnorm": {"tuned": 3, "original": 1}}},
        "logits": {"tuned": {"relative_error": 0.004, "same_argmax": 0.98}},
        "kernels": {"sglang": kinds(rmsnorm=12.0, GEMM=500.0), "tuned": TUNED},
    }


def kinds(**us: float) -> dict[str, Any]:
    return {"kinds": {name: {"us": one} for name, one in us.items()}}


CONTENT: dict[str, Any] = {
    "model": "llama-3-8b",
    "asked": {"layers": 12, "context": 1024},
    "environment": {"packages": {"sglang": "0.5.17"}},
    "prefill": {},
}


def table(decode: float, prefill: float) -> str:
    cases = {"decode": {"1": case(decode, 1.0)}, "prefill": {"2048": case(1.0, prefill)}}
    content = {**CONTENT, **cases}
    return "\n".join(steps_section.steps(content))


def test_a_step_stands_beside_what_was_asked() -> None:
    found = table(1.03, 0.999)
    assert "SGLang 0.5.17 with random weights, 12 of its layers" in found
    assert "| decode, batch 1 | 1,000 us | 971 us | 1.0300x (1.0000 to 1.1000) | 1.02x |" in found
    assert "| 3 of 4 | 0.4%, 98% the same token |" in found
    assert "missed" not in found


@pytest.mark.parametrize(("decode", "prefill"), [(1.01, 0.999), (1.03, 0.99)])
def test_what_falls_short_is_marked(decode: float, prefill: float) -> None:
    assert table(decode, prefill).count("**missed**") == 1


def test_kernels_inside_the_step_are_compared_where_all_are_tuned() -> None:
    found = table(1.03, 0.999)
    assert "| batch | rmsnorm |" in found
    assert "| 1 | 1.50x |" in found
    partly = case(1.03, 1.0)
    partly["kernels"]["tuned"] = {"kinds": {**TUNED["kinds"], "rmsnorm": {"us": 1.0}}}
    content = {**CONTENT, "decode": {"1": partly}}
    assert "Inside a decode step" not in "\n".join(steps_section.steps(content))


def test_a_call_stands_beside_the_bare_launch() -> None:
    us = {"rmsnorm": {"function": 8.9, "torch.ops": 12.6, "bare launch": 2.9}}
    content = {"calls": 500, "us": {**us, "torch.add": {"function": 5.4}}}
    found = "\n".join(steps_section.call_cost(content))
    assert "| rmsnorm | 8.9 | 12.6 | 2.9 | 6.0 **missed** |" in found
    assert "| torch.add | 5.4 |  |  |  |" in found
