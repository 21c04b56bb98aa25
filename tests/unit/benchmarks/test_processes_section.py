"""Steps of the engine over processes: what is said of them, and what the costs predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import processes_section
from sglang_processes import summarize_steps

MODES = ("own", "operators", "all")


def process(mode: str, *runs_us: float, batch: str = "1") -> dict[str, Any]:
    return {"mode": mode, "step_us": {batch: list(runs_us)}}


def content(*processes: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "llama-3-8b",
        "context": 1024,
        "steps": summarize_steps(MODES, processes),
        "processes": processes,
        "environment": {"packages": {"sglang": "0.5.17"}},
    }


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


def test_what_was_asked_and_what_was_predicted_stand_beside_it() -> None:
    found = "\n".join(processes_section.section(content(*STEADY)))
    assert "| 1 | 4,850 us | these and `gemm_small_m` | 4,390 us | 1.105x (1.091 to 1.119)" in found
    assert "| 1.08x | 2 and 2 |" in found
    assert "1.022x" in found
    assert "| 105 us | 517 us | 355 us |" in found, "saved by the operators, and by products on top"


def test_runs_of_a_process_that_scatter_are_too_noisy_to_say() -> None:
    wild = [process(mode, 10_000.0, 6_000.0, batch="128") for mode in MODES]
    told = content(*STEADY, *wild)
    found = "\n".join(processes_section.section(told))
    assert "| 128 | single runs 6,000 to 10,000 us | | | too noisy to say | | |" in found
    assert "at 128" not in processes_section.in_short(told)


def test_a_llama_calls_each_product_once_a_layer() -> None:
    calls = list(processes_section.calls_of("llama-3-8b", 16))
    assert ("gemm_small_m", {"M": 16, "N": 6144, "K": 4096}, 32) in calls
    assert ("fused_add_rmsnorm", {"T": 16, "H": 4096}, 64) in calls
