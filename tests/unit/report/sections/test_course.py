"""Where a run's time went, and on which of several devices each workload was timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.report.data import ReportData
from tuner.report.html import render_report
from tuner.report.sections.course import TimeTable, course_json, homes_lines, time_spent
from tuner.report.terminal import json_of
from tuner.session import events


@pytest.fixture
def spread(data: ReportData) -> ReportData:
    """A run of two devices, of which one was lost, that was resumed once."""
    first, *others = [result.workload.key for result in data.results]
    return replace(
        data,
        homes=(
            events.HomesChosen(
                0,
                ("GPU 0", "GPU 1"),
                dict.fromkeys([first, *others], "GPU 1"),
                {first: 0.97},
                {"GPU 0": "it fell off the bus"},
            ),
            # Resumed with both.
            events.HomesChosen(
                0, ("GPU 0", "GPU 1"), {first: "GPU 0", **dict.fromkeys(others, "GPU 1")}
            ),
        ),
        reference_us={"GPU 0": 100.0, "GPU 1": 103.0},
        reference_workload=first,
        time_spent=(
            events.TimeSpent(0, {"opening": 2.0, "search": 10.0}, 2, 15.0, 1.0),
            events.TimeSpent(0, {"opening": 1.0, "finals": 7.0}, 2, 0.0, 0.0),
        ),
    )


def test_the_runs_of_a_session_are_added_up(spread: ReportData) -> None:
    spent = time_spent(spread)
    assert spent == TimeTable({"opening": 3.0, "search": 10.0, "finals": 7.0}, 15.0, 1.0, 4.0)
    assert [share for _, _, share in spent.rows()] == [0.15, 0.5, 0.35]
    assert dict(one[:2] for one in spent.search_rows())["waiting for a proposal"] == 4.0


def test_parts_of_a_phase_stand_below_it_the_longest_first(spread: ReportData) -> None:
    first, second = spread.time_spent
    inside = {"comparison/timing": 3.0, "choosing/timing": 2.0, "choosing": 0.1}
    told = replace(spread, time_spent=(first, replace(second, inside_s={"finals": inside}), second))
    assert course_json(told)["time"]["inside_s"] == {"finals": inside}  # type: ignore[index]
    spent = time_spent(told)
    assert spent is not None
    assert spent.parts() == {
        "verifying and comparing the finalists": [
            ("comparison: timed runs", 3.0, 3.0 / 28.0),
            ("choosing finalists: timed runs", 2.0, 2.0 / 28.0),
        ]
    }
    rows = [row for row in render_report(told).split("<tr>") if "of that, " in row]
    assert [row.split("of that, ")[1].split("<")[0] for row in rows] == [
        "comparison: timed runs",
        "choosing finalists: timed runs",
    ]


def test_processes_that_were_started_on_the_way_are_told(spread: ReportData) -> None:
    assert "Processes started" not in render_report(spread), "nobody counted"
    first, second = spread.time_spent
    counted = replace(
        spread,
        time_spent=(
            replace(first, starts={"opening": {"tune-worker": 2}}),
            replace(second, starts={"opening": {"tune-worker": 1}, "finals": {"g++": 3}}),
        ),
    )
    assert course_json(counted)["time"]["starts"] == {  # type: ignore[index]
        "opening": {"tune-worker": 3},
        "finals": {"g++": 3},
    }
    table = render_report(counted).partition('aria-label="Where the time went"')[2]
    rows = table.partition("</table>")[0].split("<tr>")
    (opening,) = (row for row in rows if "starting processes" in row)
    (search,) = (row for row in rows if ">searching<" in row)
    assert ">3 tune-worker</td>" in opening
    assert ">none</td>" in search
    half = replace(spread, time_spent=(replace(first, starts={}), second))
    assert "Processes started" not in render_report(half), "not all runs were counted"


def test_who_timed_what_and_who_differs_is_said(spread: ReportData) -> None:
    shared, reference, differ, lost, moved = homes_lines(spread)
    assert shared == "Each workload was timed on one device of 2: GPU 0, GPU 1."
    assert "GPU 0 100 us, GPU 1 103 us" in reference
    assert differ.startswith("Slower than GPU 0 on the reference kernel: GPU 1 by 3.0 %;")
    assert lost == "GPU 0 was lost: it fell off the bus."
    assert "what GPU 1 took was multiplied by 0.9700" in moved
    html = render_report(spread)
    assert "Timed on" in html
    assert "Where the time went" in html


def test_what_is_never_timed_was_not_begun_elsewhere_either(spread: ReportData) -> None:
    last = spread.homes[-1]
    homes, factors = {**last.homes, "N=1": "GPU 1"}, {**last.factors, "N=1": 0.97}
    edge = replace(spread, homes=(*spread.homes[:-1], replace(last, homes=homes, factors=factors)))
    assert homes_lines(edge) == homes_lines(spread)


def test_json_says_it_too(spread: ReportData) -> None:
    made = json_of(spread)
    assert made["gpus"] == {
        "members": ["GPU 0", "GPU 1"],
        "reference": spread.reference_workload,
        "reference_us": {"GPU 0": 100.0, "GPU 1": 103.0},
        "differ": True,
        "lost": {"GPU 0": "it fell off the bus"},
        "factors": {spread.reference_workload: 0.97},
    }
    assert made["time"] == {
        "phases_s": {"opening": 3.0, "search": 10.0, "finals": 7.0},
        "inside_s": {},
        "search_s": {"device": 15.0, "compiler": 1.0, "proposals": 4.0},
    }
    devices = [one["gpu"] for one in made["workloads"]]  # type: ignore[attr-defined]
    assert devices == ["GPU 0", *["GPU 1"] * (len(devices) - 1)]


def test_a_run_on_one_device_says_nothing_of_several(data: ReportData) -> None:
    assert course_json(data) == {}
    assert homes_lines(data) == ()
    assert "Timed on" not in render_report(data)
    assert all("gpu" not in one for one in json_of(data)["workloads"])  # type: ignore[attr-defined]
