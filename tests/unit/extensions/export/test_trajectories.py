"""The rows of a session's rounds and the file they are written to."""

from __future__ import annotations

import json
from math import log

import pytest

from tuner.extensions.agents.training import (
    FORMATS,
    REFUSED_REWARD,
    SLOWEST,
    explain_left_out,
    reward_of,
    trajectories,
    write_trajectories,
)
from tuner.model.errors import InputError, SessionError

# Columns that TRL's trainers read or pass to reward functions under these names themselves.
TAKEN = {
    "messages",
    "text",
    "label",
    "labels",
    "images",
    "image",
    "environment",
    "input_ids",
    "chosen",
    "rejected",
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "chat_template_kwargs",
}


@pytest.fixture
def rounds(model_round, note, session):
    """A session with a round that got faster, one refused, one unplanned and one cut short."""
    model_round(1).adds("too long").ends(1.5)
    model_round(2).is_refused("line 3: no such name")
    note(3).says("user", "plan").replies("no plan").is_refused("that is no plan")
    note(4).says("user", "plan").replies("a plan").plans()
    return session


def test_the_reward_is_the_logarithm_of_the_speedup():
    assert reward_of(1.0) == 0.0
    assert reward_of(2.0) == log(2.0)


@pytest.mark.parametrize("speedup", [0.9, 0.5, 0.1, 1e-6])
def test_whatever_runs_correctly_is_worth_more_than_what_was_refused(speedup):
    assert reward_of(speedup) >= SLOWEST > REFUSED_REWARD == reward_of(None)


def test_every_round_that_is_over_is_a_row(rounds):
    made = trajectories(rounds, "sft")
    assert [row["round"] for row in made.rows] == [1, 2, 3]
    assert [row["outcome"] for row in made.rows] == ["measured", "refused", "unplanned"]
    assert [row["reward"] for row in made.rows] == [log(1.5), REFUSED_REWARD, REFUSED_REWARD]
    assert [row["candidate"] for row in made.rows] == ["r1", "", ""]
    assert made.rows[1]["problems"] == ["line 3: no such name"]
    assert made.left_out == {4: "it is not over"}


def test_a_candidate_that_never_ran_correctly_is_worth_no_more_than_a_refused_one(
    model_round, session
):
    model_round().adds().ends(None)
    (row,) = trajectories(session, "sft").rows
    assert (row["outcome"], row["reward"], row["speedup"]) == ("incorrect", REFUSED_REWARD, None)


def test_supervised_rows_have_a_prompt_and_what_the_model_made_of_it(rounds):
    row = trajectories(rounds, "sft").rows[0]
    assert [m["role"] for m in row["prompt"]] == ["system", "user", "user"]
    assert row["completion"][0]["role"] == row["completion"][-1]["role"] == "assistant"
    assert [tool["function"]["name"] for tool in row["tools"]] == ["render", "measure"]


def test_rows_for_reinforcement_end_with_the_request_for_a_template(rounds):
    made = trajectories(rounds, "grpo")
    assert [row["round"] for row in made.rows] == [1, 2]
    assert all(row["prompt"][-1] == {"role": "user", "content": "write it"} for row in made.rows)
    assert not {"completion", "tools"} & set(made.rows[0])
    assert "plan could not be read" in made.left_out[3]


@pytest.mark.parametrize("form", FORMATS)
def test_all_rows_have_the_same_columns_and_none_that_trl_gives_a_meaning(rounds, form):
    rows = trajectories(rounds, form).rows
    assert len({frozenset(row) for row in rows}) == 1
    assert not TAKEN & set(rows[0])


def test_a_round_without_tools_declares_none_rather_than_an_empty_list(note, session):
    note().says("user", "plan").replies("plan").plans().replies("template").adds().ends(1.0)
    (row,) = trajectories(session, "sft").rows
    assert row["tools"] is None


def test_rounds_of_an_agent_that_says_nothing_are_left_out(note, session):
    note(1).plans().adds().ends(1.1)
    note(2).is_idle()
    made = trajectories(session, "sft")
    assert not made.rows
    assert explain_left_out(made.left_out) == (
        "round 1: no messages: its agent is not a model; round 2: the agent had nothing to try"
    )


def test_each_line_is_one_row_whatever_the_texts_hold(note, session, tmp_path):
    said = "one\nline\u2028 two \u00e9\x0c"
    note().says("user", said).replies("plan").plans().replies("it").adds().ends(1.0)
    path = tmp_path / "rows.jsonl"
    write_trajectories(session.directory, path, "sft")
    (line,) = path.read_text("utf-8").splitlines()
    assert json.loads(line)["prompt"] == [{"role": "user", "content": said}]


def test_without_a_single_row_no_file_is_written(note, session, tmp_path):
    note().plans().adds().ends(1.1)
    path = tmp_path / "rows.jsonl"
    with pytest.raises(SessionError, match=r"no round can be exported: round 1: no messages"):
        write_trajectories(session.directory, path, "sft")
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_told(rounds, tmp_path):
    with pytest.raises(InputError, match="choose another place with --trajectories"):
        write_trajectories(rounds.directory, tmp_path / "none" / "rows.jsonl", "sft")
