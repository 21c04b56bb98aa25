"""Steps of the engine over processes: what is said of them, and what the costs predict."""

from __future__ import annotations

from typing import Any

import processes_section
from sglang_processes import summarize_steps

MODES = ("own", "operators", "all")


def process(mode: str, *runs_us: float, batch: str = "1") -> dict[str, Any]:
    return {"mode": mode, "step_us": {batch: list(runs_us)}}


STEADY = (
    process("own", 4800.0, 4810.0, 4790.0),
    process("operators", 4750.0),
    process("all", 4400.0),
    process("own", 4900.0),
    process("operators", 4740.0),
    process("all", 4380.0),
)


def test_a_step_is_the_median_over_processes_with_the_ratios_of_any_two() -> None:
    found = summarize_steps(MODES, STEADY)["1"]["all"]
    assert found["processes_us"] == [4400.0, 4380.0]
    assert found["speedup"] == round(4850.0 / 4390.0, 4)
    assert found["spread"] == [round(4800.0 / 4400.0, 4), round(4900.0 / 4380.0, 4)]


def test_a_llama_calls_each_product_once_a_layer() -> None:
    calls = list(processes_section.calls_of("llama-3-8b", 16))
    assert ("gemm_small_m", {"M": 16, "N": 6144, "K": 4096}, 32) in calls
    assert ("fused_add_rmsnorm", {"T": 16, "H": 4096}, 64) in calls
