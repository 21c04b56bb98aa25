"""What an agent is told of times that are a CPU's: nothing is compared."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.rounds_sample import session_with_rounds
from tuner.cli.ending import round_lines
from tuner.extensions.agents.briefing import member_summary
from tuner.extensions.agents.history import describe_default, memory_text
from tuner.model.kernel import Workload
from tuner.model.progress import WorkloadProgress
from tuner.report.data import load
from tuner.report.html import render_report
from tuner.report.terminal import json_of
from tuner.session.events import DefaultTimed
from tuner.session.rounds import history
from tuner.session.session import Session

RATIO = re.compile(r"\bx\d+\.\d|\d\.\d+x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rounds") / "run"
    session_with_rounds(folder).close()
    return folder


def test_the_memory_of_rounds_has_ratios_only_where_times_can_be_compared(folder):
    with Session.open(folder, read_only=True) as session:
        rounds = history(session)
    assert RATIO.search(memory_text(rounds))
    told = memory_text(rounds, comparable=False)
    assert not re.search(r"as fast as|expected time", told)
    assert "ran correctly" in told
    older = memory_text(rounds, 1, comparable=False)
    assert "as fast as" not in older


def test_a_default_and_a_candidate_are_said_to_run_and_no_more():
    timed = DefaultTimed(1, "T=8", 20.0, 10.0)
    assert "x2.00" in describe_default(timed)
    assert describe_default(timed, comparable=False) == "its default config ran on T=8"
    with_best = {Workload.of({"T": 8}): None}
    assert member_summary({}, dict.fromkeys(with_best, 1.0), comparable=False) == (
        "No config ran correctly."
    )


def test_progress_on_a_cpu_has_no_speedup():
    one = WorkloadProgress(Workload.of({"T": 8}), 10, baseline_us=4.0, best_us=2.0)
    assert one.speedup == 2.0
    assert replace(one, comparable=False).speedup is None


def test_a_report_of_rounds_on_a_cpu_compares_no_times(folder, monkeypatch):
    monkeypatch.setattr(Session, "on_cpu", property(lambda self: True))
    data = replace(load(folder), on_cpu=True)
    assert data.rounds
    assert all(one.speedup is None and one.gain is None for one in data.rounds)
    assert "ran correctly" in "\n".join(round_lines(data))
    assert not any(RATIO.search(line) and "time" in line for line in round_lines(data))
    for told in json_of(data)["rounds"]:
        assert (told["speedup"], told["over_base"], told["search_gain"]) == (None, None, None)
    page = render_report(data)
    assert "The tree of candidates" not in page
