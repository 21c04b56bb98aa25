"""Searches that ended before their budget are told, with the reason."""

from __future__ import annotations

from tuner.report.data import EarlyEnd, ReportData
from tuner.report.html import render_report
from tuner.report.sections.search import early_end_lines


def data(*ends: EarlyEnd) -> ReportData:
    return ReportData("scale", "H200", recorded=False, early_ends=ends)


def test_nothing_is_said_of_searches_that_used_their_budget():
    assert early_end_lines(data()) == ()


def test_what_was_left_to_expect_and_what_was_spent_are_told():
    enough = EarlyEnd("initial", "T=1", 31, 0.0041), EarlyEnd("initial", "T=2", 1012, 0.001)
    assert early_end_lines(data(*enough)) == (
        "2 searches ended early, after 1,043 trials in all: the untried configs were expected to "
        "save no more than 0.4% of the best time",
    )


def test_want_of_time_is_another_reason():
    late = EarlyEnd("initial", "T=1", 3, None)
    (line,) = early_end_lines(data(late))
    assert line == "1 search ended early for want of time"
    assert "1 search ended early" not in render_report(data(late)), "no config was tried"
