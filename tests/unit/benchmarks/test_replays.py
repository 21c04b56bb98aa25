"""The benchmarks that stand in for parts of a run still fit what they stand in for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import recorded_search

from tuner.search import pool


@pytest.mark.slow
def test_the_replayed_search_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pool.valid_configs

    # Every config of a space is compiled beforehand.
    def some(*space: Any) -> pool.Pool:
        found = whole(*space)
        return found.restricted(frozenset(list(found)[:: len(found) // 6]))

    monkeypatch.setattr(pool, "valid_configs", some)
    out = tmp_path / "found.json"
    words = ["--kernel", "topk_softmax", "--seeds", "1", "--trials", "4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["recorded_search.py", *words])
    recorded_search.main()
    assert "topk_softmax" in json.dumps(json.loads(out.read_text("utf-8")))
