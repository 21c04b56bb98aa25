"""The picture of the tree: every candidate at its speedup, every failed round as a cross."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.drawings import of_class, parsed, texts
from tuner.report.sections.rounds import WIDTH, TreeMark, tree

INITIAL = TreeMark(0, "initial", "", "candidate", "1.10x", 1.1)
GOOD = TreeMark(1, "r1", "initial", "candidate", "2.00x, wins on 3 workloads", 2.0, won=True)
REFUSED = TreeMark(2, "no candidate", "r1", "failed", "refused, 4 answers refused")
WORSE = TreeMark(3, "r3", "initial", "candidate", "0.80x", 0.8)
UNTIMED = TreeMark(4, "r4", "r1", "unknown", "no config was correct")
ALL = (INITIAL, GOOD, REFUSED, WORSE, UNTIMED)


@pytest.fixture(scope="module")
def root():
    return parsed(tree(ALL))


def test_every_candidate_is_named_with_its_speedup(root):
    assert {"initial", "1.10x", "r1", "2.00x", "r3", "0.80x"} <= set(texts(root))


def test_faster_candidates_are_higher_and_later_ones_further_right(root):
    nodes = {e.find("title").text.partition(":")[0]: e for e in of_class(root, "node")}
    at = {name: (float(e.get("cx")), float(e.get("cy"))) for name, e in nodes.items()}
    first, good = at["initial"], at["Round 1, r1 built on initial"]
    worse = at["Round 3, r3 built on initial"]
    assert first[0] < good[0] < worse[0]
    assert good[1] < first[1] < worse[1]


def test_every_candidate_and_failed_round_hangs_on_what_it_was_built_on(root):
    edges = [e.get("d", "").partition("C")[0] for e in of_class(root, "edge")]
    assert len(edges) == 4
    assert len(set(edges)) == 2, "two parents"


def test_a_refused_round_is_a_cross_and_an_untimed_candidate_an_open_circle(root):
    assert len(of_class(root, "cross")) == 1
    (open_one,) = of_class(root, "unknown")
    assert open_one.tag == "circle"
    assert "no result" in texts(root)


def test_only_winners_and_what_they_grew_from_stand_out(root):
    assert len(of_class(root, "node")) == 4
    assert [e.find("title").text for e in of_class(root, "won") if e.tag == "circle"] == [
        "Round 1, r1 built on initial: 2.00x, wins on 3 workloads."
    ]
    assert len([e for e in of_class(root, "edge") if "won" in e.get("class", "")]) == 1


def test_a_screen_reader_hears_the_tree_in_words(root):
    assert root.get("aria-label") == "The tree of candidates"
    description = root.find("desc")
    assert root.get("aria-describedby") == description.get("id")
    assert description.text == (
        "initial: 1.10x. Round 1, r1 built on initial: 2.00x, wins on 3 workloads. "
        "Round 2, no candidate built on r1: refused, 4 answers refused. "
        "Round 3, r3 built on initial: 0.80x. Round 4, r4 built on r1: no config was correct."
    )


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
