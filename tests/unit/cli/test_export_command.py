"""`tune export` as a user sees it."""

from __future__ import annotations

import json

import pytest

from tuner.session.events import CandidateMade, Idea, Planned, RoundEnded, RoundOutcome, Said

IDEA = Idea("initial", "h", "c")


@pytest.fixture
def session(make_plan, make_session):
    """A session of files with two rounds, the second of which is not over."""
    with make_session(make_plan()) as opened:
        for number in (1, 2):
            said = {"role": "user", "content": f"request {number}"}
            opened.record_event(Said(number, {"type": "message", "message": said}))
        opened.record_event(Said(1, {"type": "plan", "text": "{}"}))
        opened.record_event(Planned(1, IDEA))
        answer = {"type": "answer", "template": "int x;", "space": "version: 1"}
        opened.record_event(Said(1, answer))
        opened.record_event(CandidateMade(1, "r1", 1))
        opened.record_event(RoundEnded(1, RoundOutcome(2.0, 2.0)))
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
