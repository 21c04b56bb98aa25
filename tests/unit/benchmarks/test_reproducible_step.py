"""benchmarks/reproducible_step.py: what it computes without SGLang and without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import reproducible_step as step
from reproducible_step import DETERMINISTIC, MODES, OURS, USUAL, compare_logits, lines_of

Logits = list[np.ndarray]


def logits(*, tokens: int = 4) -> Logits:
    drawn = np.random.default_rng(1)
    return [drawn.standard_normal(8).astype(np.float32) for _ in range(tokens)]


def test_equal_logits_have_no_first_difference() -> None:
    assert compare_logits(logits(), logits()) == {"tokens": 4, "equal": 4, "first": None}


def test_a_last_bit_is_a_difference_and_the_first_one_is_told() -> None:
    among = logits()
    among[2][5] = np.nextafter(among[2][5], np.float32(9))
    among[3][:] = 0
    found = compare_logits(logits(), among)
    assert (found["equal"], found["first"], found["argmax"]) == (2, 3, True)
    assert 0 < found["largest"] < 1e-6


@pytest.mark.parametrize(("own", "other"), [(0.0, -0.0), (np.nan, np.nan)])
def test_bits_are_compared_not_values(own: float, other: float) -> None:
    one, two = ([np.array([value], dtype=np.float32)] for value in (own, other))
    assert compare_logits(one, two)["equal"] == int(np.isnan(own))


def test_modes_differ_in_plugins_and_in_the_mode_alone() -> None:
    switches = [step.environment_of(mode, "a,b")["SGLANG_PLUGINS"] for mode in MODES]
    assert switches == ["none", "none", "a,b"]
    modes = ["enable_deterministic_inference" in step.server_args_of(mode) for mode in MODES]
    assert modes == [False, True, True]
    assert {step.server_args_of(mode)["attention_backend"] for mode in MODES} == {"fa3"}


def test_each_mode_is_listed_over_the_usual_one() -> None:
    same = {"tokens": 64, "equal": 64, "first": None}
    found = {
        USUAL: {
            "logits": {"7, first": {**same, "equal": 2, "first": 3}, "7, last": same},
            **{"step_us": {"1": [4800.0, 4801.0, 9000.0]}, "prefill_us": {"8192": [100.0]}},
        },
        DETERMINISTIC: {"logits": {"7, first": same}, "step_us": {"1": [19204.0]}},
        OURS: {"logits": {"7, first": same}, "prefill_us": {"8192": [125.0]}},
    }
    assert [*lines_of(found)] == [
        "usual: logits differ among 7, first: from token 3 on",
        "  batch 1: 4,801 us a step, 1.00x the usual step",
        "  prefill of 8192: 100 us, 1.00 of the usual rate",
        "deterministic: logits have the same bits",
        "  batch 1: 19,204 us a step, 4.00x the usual step",
        "deterministic, ours: logits have the same bits",
        "  prefill of 8192: 125 us, 0.80 of the usual rate",
    ]


def test_without_a_gpu_it_ends_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["reproducible_step.py", "--out", "none.json"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="no NVIDIA GPU here"):
        step.main()


def test_what_sglang_logs_of_a_table_is_found() -> None:
    from tuner.extensions.runtime import products

    text = "invariant-sglang: SGLang's invariant products have configs for 5 shapes"
    assert step.HAS_TABLE.search(text)
    source = products.__file__
    assert source is not None
    logged = "SGLang's invariant products have configs for %d shapes"
    assert logged in Path(source).read_text(encoding="utf-8")
