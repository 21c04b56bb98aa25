"""What an agent did is read from the session's events alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.rounds_sample import CANDIDATES, SMALL, session_with_rounds
from tuner.model.trial import INITIAL
from tuner.report.sections.rounds import AuthorData, Spent, author_of, rounds
from tuner.session.events import AgentIdle, RoundEnded, Said


@pytest.fixture
def session(tmp_path):
    with session_with_rounds(tmp_path / "run") as made:
        yield made


def test_every_round_is_told_with_how_it_ended(with_rounds):
    found = [(one.number, one.record.candidate, one.end) for one in with_rounds.rounds]
    assert found == [
        (1, "r1", "searched"),
        (2, None, "refused"),
        (3, "r3", "searched"),
        (4, None, "refused"),
        (5, "r5", "searched"),
        (6, None, "open"),
    ]


def test_a_round_that_was_not_ended_keeps_its_plan(with_rounds):
    last = with_rounds.rounds[-1]
    assert (last.record.base, last.record.idea.change) == ("r3", "use clusters")
    assert [one.predicted for one in last.expected] == [0.7, 1.5, 0.1]
    assert {one.actual for one in last.expected} == {None}


def test_an_agent_without_ideas_leaves_an_idle_round(session):
    session.record_event(AgentIdle(7, "r3"))
    last = rounds(session)[-1]
    assert (last.end, last.record.base, last.record.idea) == ("idle", "r3", None)


def test_predictions_stand_beside_what_was_measured(with_rounds):
    third = with_rounds.rounds[2]
    assert [(one.metric, one.predicted) for one in third.expected] == [
        ("time_us", 0.5),
        ("registers", 1.5),
        ("bank_conflicts", 0.1),
    ]
    actual = [one.actual for one in third.expected]
    assert actual == [pytest.approx(1.9 / 2.6), pytest.approx(44 / 32), None]


def test_the_default_and_the_search_make_up_the_speedup(with_rounds):
    third = with_rounds.rounds[2]
    assert (third.gain.workloads, third.gain.every) == (2, 2)
    assert third.gain.default == pytest.approx(2.6 / 1.4)
    assert third.gain.search == pytest.approx(1.4)
    assert third.gain.default * third.gain.search == pytest.approx(third.speedup)


def test_only_workloads_where_the_default_was_timed_count(session):
    (ended,) = session.events(RoundEnded, 3)
    unknown = {**ended.outcome.default_us, SMALL.key: None}
    session.record_event(RoundEnded(3, replace(ended.outcome, default_us=unknown)))
    gain = rounds(session)[2].gain
    assert (gain.workloads, gain.every) == (1, 2)
    assert gain.search == pytest.approx(1.4)


def test_a_candidate_without_a_timed_default_has_no_gain(session):
    (ended,) = session.events(RoundEnded, 3)
    outcome = replace(ended.outcome, default_us={SMALL.key: None})
    session.record_event(RoundEnded(3, outcome))
    assert rounds(session)[2].gain is None


def test_tokens_and_cost_are_those_of_all_replies(with_rounds):
    assert with_rounds.rounds[0].spent == Spent(2, 26_000, 13_000, 6_500, pytest.approx(0.026))
    assert with_rounds.rounds[3].spent == Spent()


def test_failed_requests_count_where_the_server_counted_them(session):
    usage = {"input_tokens": 100, "cached_tokens": 0, "output_tokens": 7}
    entry = {"type": "failure", "error": "cut", "usage": usage, "cost": None}
    session.record_event(Said(6, entry))
    spent = rounds(session)[-1].spent
    assert (spent.replies, spent.input, spent.output) == (2, 9_100, 307)
    assert (spent.cost, spent.unpriced) == (pytest.approx(0.009), 1)


def test_costs_that_nobody_knows_are_unknown():
    assert (Spent(1, 5, 0, 1, None, 1) + Spent(1, 5, 0, 1, None, 1)).cost is None
    assert (Spent(1, 5, 0, 1, None, 1) + Spent(1, 5, 0, 1, 0.5)).cost == 0.5


def test_the_author_is_named_with_the_models_asked_for_and_heard(session):
    assert author_of(session) == AuthorData("openai", ("big", "big-2026-10"), "mcts", 6)


def test_a_run_without_an_agent_has_no_author_and_no_rounds(tmp_path):
    with session_with_rounds(tmp_path / "run", rounds=0) as session:
        assert author_of(session) is None


def test_candidates_have_their_parent_their_template_and_their_speedup(with_rounds):
    found = {one.name: one for one in with_rounds.candidates}
    assert {name: one.parent for name, one in found.items()} == {
        INITIAL: None,
        "r1": INITIAL,
        "r3": "r1",
        "r4": "r3",
        "r5": "r3",
    }
    assert found["r4"].speedup is None, "no trial was made of it"
    assert {n: one.speedup for n, one in found.items() if n != "r4"} == {
        name: pytest.approx(known[2]) for name, known in CANDIDATES.items()
    }
    assert "kBlock" in found["r3"].template
