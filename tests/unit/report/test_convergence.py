"""The course of a search: what is the best, what is off the scale, where candidates begin."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.drawings import of_class, parsed, texts
from tuner.report.sections.search import convergence


def test_convergence_only_falls_and_skips_trials_stopped_early():
    root = parsed(
        convergence("T=1", [9.0, None, 5.0, 4.0, 7.0], [False, False, False, True, False], 8.0)
    )
    assert root.get("aria-label") == "Convergence for T=1: best 5.000 us"
    (best,) = of_class(root, "best")
    heights = [float(p.split()[1]) for p in best.get("d", "")[1:].split("L")]
    assert heights == sorted(heights)
    assert len(of_class(root, "baseline")) == 1


def test_convergence_counts_what_is_off_the_scale():
    root = parsed(convergence("T=1", [5.0, 500.0, 600.0], [False] * 3, 8.0))
    assert "2 slower, off the scale" in texts(root)


def test_thousands_of_trials_stay_small():
    times = [5.0 + (i * 7919 % 1000) / 500 for i in range(50_000)]
    assert len(convergence("T=1", times, [False] * len(times), 8.0)) < 400_000


@pytest.mark.parametrize(
    ("times", "baseline_us"), [([], None), ([None, None], 3.0), ([None], None), ([2.0], 2.0)]
)
def test_convergence_without_much_to_draw_is_still_a_chart(times, baseline_us):
    root = parsed(convergence("T=1", times, [False] * len(times), baseline_us))
    assert root.get("role") == "img"
    assert "nan" not in "".join(root.itertext())


def test_each_candidate_is_marked_where_it_begins():
    times = [9.0, 8.0, 5.0, 4.0]
    root = parsed(convergence("T=1", times, [False] * 4, None, ((0, "initial"), (2, "r1"))))
    first, second = of_class(root, "begin")
    assert float(first.get("x1", "")) < float(second.get("x1", ""))
    assert first.get("x1") == first.get("x2")
    assert {"initial", "r1"} <= set(texts(root))
    assert "".join(second.itertext()) == "r1 begins after 2 trials"


def test_a_name_that_would_run_into_the_last_is_left_out():
    begins = [(number, f"r{number}") for number in range(90)]
    root = parsed(convergence("T=1", [1.0] * 90, [False] * 90, None, begins))
    assert len(of_class(root, "begin")) == 90
    written = [float(e.get("x", "")) for e in root.iter("text") if (e.text or "").startswith("r")]
    assert len(written) > 5
    assert min(b - a for a, b in pairwise(written)) > 12


def test_one_candidate_alone_is_not_marked():
    root = parsed(convergence("T=1", [1.0], [False], None))
    assert of_class(root, "begin") == []
