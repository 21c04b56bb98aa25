"""The sections on the search keep candidates apart."""

from __future__ import annotations

from dataclasses import replace

from tests.support.drawings import of_class, parsed
from tuner.report.sections.search import convergences, importances


def test_importance_is_each_candidates_own_the_winners_first(with_rounds):
    found = importances(with_rounds)
    assert [one.name for one in found] == ["r3", "r1", "r5", "initial"]
    parameters = {one.name: {name for name, _ in one.average} for one in found}
    assert parameters["r3"] == {"block", "rows_per_warp"}
    assert parameters["r1"] == set(), "15 trials are too few"
    assert found[0].known == 2


def test_a_candidate_with_few_trials_says_so(with_rounds):
    initial = importances(with_rounds)[-1]
    assert initial.chart is None
    assert initial.by_workload[0][1].reason == "15 correct trials; at least 20 are needed"


def test_every_course_marks_the_candidates_that_were_searched(with_rounds):
    courses = convergences(with_rounds)
    assert [one.label for one in courses] == ["T=16 E=256", "T=8192 E=256"]
    for course in courses:
        assert len(of_class(parsed(course.drawing), "begin")) == 4


def test_a_single_candidate_needs_no_mark(with_rounds):
    records = tuple(one for one in with_rounds.records if one[0].candidate == "r1")
    for course in convergences(replace(with_rounds, records=records)):
        assert of_class(parsed(course.drawing), "begin") == []
