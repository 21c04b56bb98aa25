"""The page's part on many GPUs: what a campaign takes on several of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import scaling_section


def campaign(seconds: dict[int, float]) -> dict[str, Any]:
    jobs = {"rmsnorm": 60.0, "merge_state": 38.4}
    rows = [
        {"gpus": gpus, "seconds": took, "jobs": jobs, "failed": {}}
        for gpus, took in seconds.items()
    ]
    environment = {"device": "NVIDIA H200", "cores": 20}
    return {"workloads_each": 2, "trials": 24, "rows": rows, "environment": environment}


def said(content: dict[str, Any]) -> str:
    return "\n".join(scaling_section.campaign_on_gpus(content, "h200"))


def test_a_campaign_that_is_not_as_fast_as_asked_is_told_so() -> None:
    text = said(campaign({1: 98.5, 2: 53.0, 4: 32.0}))
    assert "2 operators with 2 workloads each" in text
    assert "| 1 | 98.5 | 1.00x |  | 98 |" in text
    assert "| 2 | 53.0 | 1.86x | 1.85x | 98 |" in text
    assert "| 4 | 32.0 | 3.08x | 3.5x **missed** | 98 |" in text
    assert "`benchmarks/results/h200/campaign_scaling.json`" in text


def test_what_misses_by_what_rounding_hides_is_missed() -> None:
    assert "| 1.85x | 1.85x **missed** |" in said(campaign({1: 100.0, 2: 54.1}))


def test_without_one_gpu_alone_nothing_is_called_faster() -> None:
    text = said(campaign({2: 53.0}))
    assert "| 2 | 53.0 | one was not measured | 1.85x | 98 |" in text
    assert "missed" not in text


def test_what_is_known_of_the_runs_is_repeated() -> None:
    assert "divided among the GPUs.\n" in said(campaign({1: 98.5}))
    content = {**campaign({1: 98.5}), "circumstances": "Beside others."}
    assert "divided among the GPUs. Beside others.\n" in said(content)
