"""What an agent did: sentences, the marks of the tree and its picture, and the profiles."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.drawings import of_class, parsed, shown, texts
from tests.support.rounds_sample import CANDIDATES, SMALL, session_with_rounds
from tuner.analysis.base import Bottleneck, Degree
from tuner.model.trial import INITIAL as INITIAL_NAME
from tuner.report.html import render_report
from tuner.report.rounds import AuthorData, Spent, author_of, rounds
from tuner.report.sections.rounds import (
    LONGEST_PROBLEM,
    WIDTH,
    TreeMark,
    group_profiles,
    marks,
    money,
    summary,
    template_line,
    tree,
)
from tuner.session.events import AgentIdle, RoundEnded, Said


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


@pytest.mark.parametrize(
    ("cost", "text"), [(0.0, "0"), (0.00041, "0.00041"), (0.26312, "0.263"), (1234.5, "1,234.50")]
)
def test_costs_are_readable_at_every_size(cost, text):
    assert money(cost) == text


def test_a_long_reason_is_cut_and_says_so(with_rounds):
    refused = with_rounds.rounds[1]
    long = replace(refused, record=replace(refused.record, problems=("e" * 9000,)))
    html = render_report(replace(with_rounds, rounds=(long,)))
    assert f">{'e' * LONGEST_PROBLEM} …</pre>" in html


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


INITIAL = TreeMark(0, "initial", "", "candidate", "1.10x", 1.1)
GOOD = TreeMark(1, "r1", "initial", "candidate", "2.00x, wins on 3 workloads", 2.0, won=True)
REFUSED = TreeMark(2, "no candidate", "r1", "failed", "refused, 4 answers refused")
WORSE = TreeMark(3, "r3", "initial", "candidate", "0.80x", 0.8)
UNTIMED = TreeMark(4, "r4", "r1", "unknown", "no config was correct")
ALL = (INITIAL, GOOD, REFUSED, WORSE, UNTIMED)


@pytest.fixture(scope="module")
def root():
    return parsed(tree(ALL))


def test_the_picture_of_a_tree(golden):
    golden("tree.svg", tree(ALL))


def test_faster_candidates_are_higher_and_later_ones_further_right(root):
    nodes = {e.find("title").text.partition(":")[0]: e for e in of_class(root, "node")}
    at = {name: (float(e.get("cx")), float(e.get("cy"))) for name, e in nodes.items()}
    first, good = at["initial"], at["Round 1, r1 built on initial"]
    worse = at["Round 3, r3 built on initial"]
    assert first[0] < good[0] < worse[0]
    assert good[1] < first[1] < worse[1]


def test_speedups_far_apart_are_drawn_by_ratio():
    far = [
        INITIAL,
        *(TreeMark(n, f"r{n}", "initial", "candidate", "", 2.0**n) for n in range(1, 6)),
    ]
    heights = [float(e.get("cy")) for e in of_class(parsed(tree(far)), "node")][1:]
    steps = [a - b for a, b in pairwise(heights)]
    assert steps == pytest.approx([steps[0]] * 4, abs=0.2)


def test_many_rounds_make_the_picture_wider_instead_of_crowding_it():
    many = [INITIAL, *(TreeMark(n, f"r{n}", "initial", "candidate", "", 1.0) for n in range(1, 60))]
    root = parsed(tree(many))
    assert float(root.get("viewBox").split()[2]) > 2 * WIDTH
    assert "wide" in root.get("class").split()
    places = [float(e.get("cx")) for e in of_class(root, "node")]
    assert min(b - a for a, b in pairwise(places)) > 40


@pytest.mark.parametrize("marks", [(), (INITIAL,), (REFUSED,), (UNTIMED,)], ids=str)
def test_little_to_draw_is_still_a_picture(marks):
    root = parsed(tree(marks))
    assert "nan" not in tree(marks)
    assert root.get("role") == "img"


def test_names_from_outside_are_escaped_and_cut():
    odd = TreeMark(0, "<b>&\x00" + "x" * 50, "", "candidate", "</title>", 1.0)
    drawn = tree([odd])
    root = parsed(drawn)
    assert "<b>" not in drawn
    assert max(map(len, texts(root))) < 20


def test_without_a_result_the_fastest_in_the_search_comes_first(with_rounds):
    assert group_profiles(replace(with_rounds, results=()))[0][0] == "r3"


@pytest.mark.parametrize("line", [None, 0, 4, 99])
def test_a_line_that_the_template_does_not_have_shows_no_code(with_rounds, line):
    assert template_line(with_rounds, "r3", line) == ""


def test_every_degree_and_bound_is_put_into_words(with_rounds, golden):
    first = replace(with_rounds.profiles[0], findings=(), metrics={}, reason="")
    every = (replace(first, kind=k, degree=d) for d in Degree for k in Bottleneck)
    page = render_report(replace(with_rounds, profiles=tuple(every)))
    golden("bounds.txt", shown(page, "What the profile says"))


@pytest.fixture
def session(tmp_path):
    with session_with_rounds(tmp_path / "run") as made:
        yield made


def test_an_agent_without_ideas_leaves_an_idle_round(session):
    session.record_event(AgentIdle(7, "r3"))
    last = rounds(session)[-1]
    assert (last.end, last.record.base, last.record.idea) == ("idle", "r3", None)


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


def test_candidates_have_their_parent_their_template_and_their_speedup(with_rounds):
    found = {one.name: one for one in with_rounds.candidates}
    assert {name: one.parent for name, one in found.items()} == {
        INITIAL_NAME: None,
        "r1": INITIAL_NAME,
        "r3": "r1",
        "r4": "r3",
        "r5": "r3",
    }
    assert found["r4"].speedup is None, "no trial was made of it"
    assert {n: one.speedup for n, one in found.items() if n != "r4"} == {
        name: pytest.approx(known[2]) for name, known in CANDIDATES.items()
    }
    assert "kBlock" in found["r3"].template
