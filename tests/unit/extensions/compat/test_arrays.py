"""Source text, arrays and a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tuner
from tuner.model.errors import InputError, KernelError

SCALE = """
__global__ void scale(float* y, const float* x, float factor, int n) {
  for (int i = blockIdx.x * block + threadIdx.x; i < n; i += gridDim.x * block)
    y[i] = factor * x[i] * (block == 128 ? 2 : 1);
}
"""
X = np.random.default_rng(0).standard_normal(600).astype(np.float32)
ARGUMENTS = {"y": np.zeros_like(X), "x": X, "factor": np.float32(2), "n": np.int32(X.size)}
PARAMETERS = {"block": [32, 64, 128], "per_thread": [1, 4]}
GRID = "ceil_div(600, block * per_thread)"


def test_the_fastest_config_that_is_right_wins() -> None:
    asked: dict[str, Any] = {"grid": GRID, "device": "host"}
    found = tuner.tune(SCALE, ARGUMENTS, PARAMETERS, answer={"y": 2 * X}, **asked)
    right = [one for one in found.trials if one["time_us"] is not None]
    assert {one["block"] for one in right} == {32, 64}
    assert {one["status"] for one in found.trials if one["block"] == 128} == {"incorrect"}
    assert found.config["block"] in (32, 64)
    assert found.trials[0] | {"block": 32, "per_thread": 1} == found.trials[0]
    assert found.speedup == found.default_us / found.time_us >= 1
    assert f"#define block {found.config['block']}\n" in found.source


def test_without_an_answer_the_first_config_is_the_measure() -> None:
    found = tuner.tune(
        *(SCALE, [*ARGUMENTS.values()], {"threads": [64], "block": [64, 128]}),
        block="threads",
        grid=lambda config: (10, 1),
        constraints=["block >= threads"],
        device="host",
    )
    assert [one["status"] for one in found.trials if one["block"] == 128] == ["incorrect"]


def test_a_first_config_that_is_wrong_ends_it() -> None:
    with pytest.raises(KernelError, match=r"the first config, block=128, fails \(incorrect\)"):
        tuner.tune(SCALE, ARGUMENTS, {"block": [128]}, grid=5, answer={"y": 2 * X}, device="host")


@pytest.mark.parametrize(
    ("source", "given", "said"),
    [
        (SCALE, {"parameters": {"threads": [32]}}, "how many threads"),
        (SCALE, {"answer": {"z": X}}, "names 'z'"),
        (SCALE + SCALE.replace("scale", "other"), {}, "2 kernels"),
        (SCALE, {"grid": (1, 2, 3, 4)}, "4 sizes"),
        (SCALE, {"rounds": 3}, "rounds= is not for source text"),
        (SCALE, {"trials": 0}, "`trials` is 0"),
    ],
)
def test_what_is_missing_is_named(source: str, given: dict[str, Any], said: str) -> None:
    asked = {"parameters": {"block": [32]}, "grid": 1, "device": "host", **given}
    with pytest.raises(InputError, match=said):
        tuner.tune(source, ARGUMENTS, asked.pop("parameters"), **asked)
