"""`tune export` as a user sees it."""

from __future__ import annotations

import json

import pytest

from tuner.agent.history import RoundOutcome
from tuner.model.trial import INITIAL

IDEA = {
    "base": INITIAL,
    "hypothesis": "h",
    "change": "c",
    "expectations": [],
    "reference": "",
}


@pytest.fixture
def session(make_plan, make_session):
    """A session of files with two rounds, the second of which is not over."""
    with make_session(make_plan()) as opened:
        for number in (1, 2):
            said = {"role": "user", "content": f"request {number}"}
            opened.note(number, "said", {"type": "message", "message": said})
        opened.note(1, "said", {"type": "plan", "text": "{}"})
        opened.note(1, "idea", IDEA)
        opened.note(1, "said", {"type": "answer", "template": "int x;", "space": "version: 1"})
        opened.note(1, "candidate", {"name": "r1", "attempt": 1, "problems": []})
        opened.note(1, "outcome", {"outcome": RoundOutcome(2.0, 2.0).to_json()})
    return opened.directory


@pytest.mark.parametrize(
    ("words", "columns"),
    [((), {"prompt", "completion", "tools", "reward"}), (("--format", "grpo"), {"prompt"})],
)
def test_it_writes_the_rounds_and_says_what_it_left_out(tune, session, tmp_path, words, columns):
    path = tmp_path / "rows.jsonl"
    result = tune("export", session, "--trajectories", path, *words)
    assert result.exit_code == 0
    assert f"{path} (1 round)" in result.output
    assert "left out: round 2: it is not over" in result.output
    (line,) = path.read_text().splitlines()
    assert columns <= set(json.loads(line))


def test_without_a_session_it_says_so(tune, tmp_path):
    result = tune("export", tmp_path, "--trajectories", tmp_path / "rows.jsonl")
    assert result.exit_code == 2
    assert str(tmp_path) in result.output


def test_it_needs_to_be_told_what_to_write(tune, session):
    result = tune("export", session)
    assert result.exit_code == 2
    assert "--trajectories" in result.output
