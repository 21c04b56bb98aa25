"""benchmarks/search.py: spaces that constants were chosen on are averaged apart from others."""

from __future__ import annotations

from pathlib import Path

import pytest
import search
from environment import PACKAGES, commit, versions

SCORE = {"share_50": 0.9, "share_100": 0.95, "within_95": 0.5, "seconds_per_run": 0.1}


def row(name: str, group: str, score: float) -> dict[str, object]:
    now = {"commit": commit(), "packages": versions(PACKAGES)}
    named = {"recording": name, "searcher": "auto", "group": group}
    return {**named, "score": score, **SCORE, "environment": now}


def test_a_new_recording_is_found_beside_its_space(tmp_path: Path) -> None:
    made = tmp_path / "mine/recordings/h200/mine.json.xz"
    made.parent.mkdir(parents=True)
    made.touch()
    (tmp_path / "mine/mine.yaml").touch()
    assert search.files_of(tmp_path) == [made]
    assert search.files_of(tmp_path / "nothing") == []


def test_the_groups_are_averaged_apart_and_shown_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_COMMIT", "0123456789ab")
    names = {"a": ("chosen_on", 0.8), "b": ("chosen_on", 0.6), "c": ("unseen", 0.4)}
    rows = {(name, "auto"): row(name, *of) for name, of in names.items()}
    out, settings = tmp_path / "search.json", {"seeds": 20, "trials": 100}
    summary = search.save(out, settings, rows)
    scores = {group: of["auto"]["score"] for group, of in summary.items()}
    assert scores == {"chosen_on": pytest.approx(0.7), "unseen": 0.4}
    assert search.kept_rows(out, settings) == rows


def test_rows_of_auto_at_another_commit_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_COMMIT", "0123456789ab")
    other = {**row("a", "unseen", 0.4), "searcher": "optuna"}
    rows = {("a", "auto"): row("a", "unseen", 0.4), ("a", "optuna"): other}
    search.save(tmp_path / "search.json", {"seeds": 1}, rows)
    monkeypatch.setenv("TUNE_COMMIT", "ba9876543210")
    assert search.kept_rows(tmp_path / "search.json", {"seeds": 1}) == {("a", "optuna"): other}
    monkeypatch.setattr(search, "versions", lambda _: {"optuna": "6.0"})
    assert search.kept_rows(tmp_path / "search.json", {"seeds": 1}) == {}
