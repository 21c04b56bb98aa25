"""The page's figures are those of the benchmark's file."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[4]
KINDS = ("cold", "warm", "poisoned")


def test_the_table_is_what_was_measured() -> None:
    page = (ROOT / "docs/knowledge.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks/results/cpu/warm_start.json").read_text())
    for pair in found["pairs"]:
        names = [pair[which].replace(",", " ").replace("_", " ") for which in ("first", "second")]
        trials = [f"{pair[kind]['mean_trials']:.1f}" for kind in KINDS]
        shares = [f"{pair[kind]['share']:.3f}" for kind in KINDS]
        assert f"| {' | '.join([*names, *trials, *shares])} |" in page


def test_a_neighbouring_shape_saves_trials_and_lies_cost_few() -> None:
    found = json.loads((ROOT / "benchmarks/results/cpu/warm_start.json").read_text())
    (pair,) = [one for one in found["pairs"] if one["first"] == "T=1024,D=11008"]
    assert pair["second"] == "T=1024,D=14336"
    assert pair["warm"]["mean_trials"] < pair["cold"]["mean_trials"] / 4
    assert pair["poisoned"]["mean_trials"] <= pair["cold"]["mean_trials"] + found["most_seeds"]
