"""The section on the rounds: its sentences, its rows, and the marks of its picture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.report.rounds import Spent
from tuner.report.sections.rounds import LONGEST_PROBLEM, marks, money, rows, summary, total


def test_the_summary_says_who_wrote_how_it_went_and_what_it_took(with_rounds):
    assert summary(with_rounds) == (
        "The agent openai (big, big-2026-10) wrote 6 rounds; the policy mcts chose what to build "
        "on: 3 searched, 2 refused, 1 not ended. 8 replies of the model took 263,000 tokens in, "
        "131,500 of them cached, and 21,800 out, for 0.263."
    )


def test_an_agent_that_costs_nothing_is_said_to_cost_nothing(with_rounds):
    silent = tuple(replace(one, spent=Spent()) for one in with_rounds.rounds)
    author = replace(with_rounds.author, agent="files", models=(), policy="llm", rounds=8)
    said = summary(replace(with_rounds, rounds=silent, author=author))
    assert said == (
        "The agent files wrote 6 of 8 rounds; the agent chose what to build on: "
        "3 searched, 2 refused, 1 not ended."
    )


def test_a_cost_that_lacks_some_replies_is_a_lower_bound(with_rounds):
    first, *others = with_rounds.rounds
    partly = replace(first, spent=replace(first.spent, unpriced=1))
    assert "for at least 0.263" in summary(replace(with_rounds, rounds=(partly, *others)))


def test_all_rounds_are_added_up(with_rounds):
    assert total(with_rounds) == Spent(8, 263_000, 131_500, 21_800, pytest.approx(0.263))


@pytest.mark.parametrize(
    ("cost", "text"), [(0.0, "0"), (0.00041, "0.00041"), (0.26312, "0.263"), (1234.5, "1,234.50")]
)
def test_costs_are_readable_at_every_size(cost, text):
    assert money(cost) == text


def test_a_row_has_its_base_its_reference_and_its_predictions(with_rounds):
    third = rows(with_rounds)[2]
    assert (third.made, third.base, third.reference, third.won) == ("r3", "r1", "initial", True)
    assert [(one.what, one.where, one.predicted, one.measured) for one in third.expected] == [
        ("time", "T=8192 E=256", "x0.50", "x0.73"),
        ("registers", "", "x1.50", "x1.38"),
        ("bank conflicts", "", "x0.10", ""),
    ]


def test_a_prediction_that_went_the_other_way_is_marked(with_rounds):
    assert [one.other_way for one in rows(with_rounds)[4].expected] == [True, True, False]
    assert not any(one.other_way for one in rows(with_rounds)[2].expected)


def test_refused_answers_keep_their_reasons(with_rounds):
    found = rows(with_rounds)
    assert len(found[1].problems) == 4
    assert found[2].problems == (
        "template.cu.j2:2: error: expected a `;`\n  2| float4 v = load(row)",
    )
    assert found[3].problems == ("grid[0] is 0 for block=64",)


def test_a_long_reason_is_cut_and_says_so(with_rounds):
    refused = with_rounds.rounds[1]
    long = replace(refused, record=replace(refused.record, problems=("e" * 9000,)))
    (row,) = rows(replace(with_rounds, rounds=(long,)))
    assert len(row.problems[0]) == LONGEST_PROBLEM + 2
    assert row.problems[0].endswith(" …")


def test_the_picture_has_a_mark_for_the_start_and_for_every_round(with_rounds):
    found = [(m.round, m.name, m.base, m.shape, m.won) for m in marks(with_rounds)]
    assert found == [
        (0, "initial", "", "candidate", False),
        (1, "r1", "initial", "candidate", True),
        (2, "no candidate", "r1", "failed", False),
        (3, "r3", "r1", "candidate", True),
        (4, "no candidate", "r3", "failed", False),
        (5, "r5", "r3", "candidate", False),
        (6, "no candidate", "r3", "unknown", False),
    ]
    assert marks(with_rounds)[3].told == "2.60x, wins on 2 workloads"


def test_a_candidate_whose_search_was_cut_off_is_drawn_with_what_it_reached(with_rounds):
    last = with_rounds.rounds[4]
    cut = replace(last, end="open", record=replace(last.record, outcome=None))
    mark = marks(replace(with_rounds, rounds=(*with_rounds.rounds[:4], cut)))[-1]
    assert (mark.name, mark.shape, mark.told) == ("r5", "candidate", "2.20x, not ended")


def test_an_idle_round_leaves_no_mark(with_rounds):
    idle = replace(with_rounds.rounds[-1], end="idle")
    changed = replace(with_rounds, rounds=(*with_rounds.rounds[:-1], idle))
    assert [mark.round for mark in marks(changed)] == [0, 1, 2, 3, 4, 5]


def test_a_baseline_that_is_kept_makes_nobody_a_winner(with_rounds):
    kept = tuple(replace(one, baseline_wins=True) for one in with_rounds.results)
    assert not any(mark.won for mark in marks(replace(with_rounds, results=kept)))
