"""How strong the check is, which the first run of a search space says beside its results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tuner.report.mutation_score import load_score

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
RUN = ("kernels/scale.cu", "--device", "host", "--trials", "2", "--session")


@pytest.fixture
def small(project, monkeypatch):
    """The project with sizes that a CPU verifies at once, and a cache that knows nothing of it."""
    monkeypatch.setenv("TUNER_CACHE_DIR", str(project.root / "cache"))
    project.edit(project.space, "tuned: [{N: 4096}, {N: 1048576}]", "tuned: [{N: 512}]")
    project.edit(project.space, "held_out: [{N: 100000}]", "held_out: [{N: 1024}]")
    return project


def test_the_first_run_says_it_and_later_ones_know_it(small, tune) -> None:
    done = tune(*RUN, "first")
    assert done.exit_code == 0, done.output
    assert "breaking the baseline" in done.stdout
    score = load_score(small.root / "first")
    assert score is not None
    assert score.caught_text == f"catches {score.killed} of {score.killed + 1} broken versions"
    assert f"verification   {score.caught_text}" in done.stdout
    # All sizes are whole blocks, so nothing can tell a guard that lets one more through.
    assert score.places == ("scale.cu:3:7: `i < N -> true` in `if (i < N) out[i] = 2.0f * in[i];`",)
    assert f"not caught     {score.places[0]}" in done.stdout
    report = (small.root / "first/report.html").read_text(encoding="utf-8")
    assert f"{score.caught_text} of the baseline" in report

    found = json.loads(tune(*RUN, "second", "--json").stdout)
    assert found["mutants"]["caught"] == score.killed
    assert found["mutants"]["survivors"] == list(score.places)
    assert found["time"].get("mutants", 0) == 0
    assert load_score(small.root / "second") == score


def test_it_can_be_left_out(small, tune) -> None:
    done = tune(*RUN, "mine", "--no-mutants", "--json")
    assert done.exit_code == 0, done.output
    assert "mutants" not in json.loads(done.stdout)
    assert not (Path(small.root) / "mine/mutation.json").exists()


def test_a_recording_verifies_nothing(project, tune) -> None:
    done = tune("kernels/scale.cu", "--json", "--session", "mine")
    assert "mutants" not in json.loads(done.stdout)
