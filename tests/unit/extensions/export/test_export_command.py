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
    [((), {"prompt", "completion", "tools", "reward"}), (("--rows", "grpo"), {"prompt"})],
)
def test_it_writes_the_rounds_and_says_what_it_left_out(tune, session, tmp_path, words, columns):
    path = tmp_path / "rows.jsonl"
    result = tune("export", session, "--trajectories", path, *words)
    assert result.exit_code == 0
    assert f"{path} (1 round)" in result.output
    assert "left out: round 2: it is not over" in result.output
    (line,) = path.read_text().splitlines()
    assert columns <= set(json.loads(line))


def test_it_needs_a_session_and_to_be_told_what_to_write(tune, session, tmp_path):
    words = ("--trajectories", tmp_path / "rows.jsonl")
    for folder, more, told in ((tmp_path, words, str(tmp_path)), (session, (), "--trajectories")):
        result = tune("export", folder, *more)
        assert result.exit_code == 2
        assert told in result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--to", "out", "--package", "mine"), "--package is for --format torch, sglang, vllm"),
        (("--to", "out", "--rows", "grpo"), "--rows is for --trajectories"),
        (("--kernel-tuner", "out", "--format", "torch"), "--format is for --to"),
    ],
)
def test_an_option_of_something_else_is_refused_and_nothing_is_written(
    tune, session, tmp_path, monkeypatch, words, told
):
    monkeypatch.chdir(tmp_path)
    result = tune("export", session, *words)
    assert result.exit_code == 2
    assert told in result.output
    assert not (tmp_path / "out").exists()
