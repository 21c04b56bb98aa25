"""The section on the profiles: the winner first, and plainly how much a profile knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.analysis.base import Bound, Degree
from tuner.report.sections.rounds import degrees, profiled


def only(data, **changes):
    return replace(data, profiles=(replace(data.profiles[0], **changes),))


def test_what_serves_most_workloads_comes_first(with_rounds):
    found = [(one.name, one.wins) for one in profiled(with_rounds)]
    assert found == [("r3", 2), ("r1", 1), ("r5", 0), ("initial", 0)]


def test_without_a_result_the_fastest_in_the_search_comes_first(with_rounds):
    assert profiled(replace(with_rounds, results=()))[0].name == "r3"


def test_a_finding_shows_the_line_of_its_own_candidates_template(with_rounds):
    first, second = profiled(with_rounds)[0].profiles[0].noticed
    assert (first.finding.line, first.code) == (2, "float4 v = load(row);")
    assert (second.finding.line, second.code) == (None, "")


@pytest.mark.parametrize("line", [0, 4, 99])
def test_a_line_that_the_template_does_not_have_shows_no_code(with_rounds, line):
    finding = replace(with_rounds.profiles[0].findings[0], line=line)
    (one,) = profiled(only(with_rounds, findings=(finding,)))
    assert one.profiles[0].noticed[0].code == ""


def test_each_degree_is_explained_once_with_the_reason_for_it(with_rounds):
    found = degrees(with_rounds)
    assert [degree for degree, _ in found] == ["counters", "timing"]
    assert found[0][1].endswith("was measured.")
    assert found[1][1].endswith("not measured. Why: the driver lets only root read counters.")


def test_without_a_gpu_the_reader_is_told_that_nothing_was_run_on_one(with_rounds):
    ((degree, said),) = degrees(only(with_rounds, degree=Degree.STATIC, reason=""))
    assert degree == "static"
    assert "nothing was run on a GPU" in said
    assert "Why" not in said


@pytest.mark.parametrize("kind", list(Bound))
@pytest.mark.parametrize("degree", list(Degree))
def test_every_kind_is_put_into_words(with_rounds, kind, degree):
    (one,) = profiled(only(with_rounds, kind=kind, degree=degree))
    assert one.profiles[0].kind.startswith("bound by ")


def test_latency_without_a_time_is_not_claimed(with_rounds):
    (one,) = profiled(only(with_rounds, kind=Bound.LATENCY, degree=Degree.STATIC))
    assert one.profiles[0].kind == "bound by latency, or by what cannot be told without a time"


def test_numbers_have_their_meaning(with_rounds):
    numbers = profiled(with_rounds)[0].profiles[0].numbers
    assert numbers == (
        ("registers per thread", "40"),
        ("bytes that moved between L2 and memory in one call", "8,400,000"),
    )
