"""What a campaign shows: a table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tuner.extensions.scale.campaign.page import JobOutcome, JobState
from tuner.extensions.scale.campaign_view import (
    LiveCampaignView,
    PlainCampaignView,
    campaign_table,
    end_line,
    make_campaign_view,
)
from tuner.model.progress import RunProgress

SEARCH = RunProgress("k", "H200", "search", 1200, 4000, 9.0, speedup=1.234)
FINALS = RunProgress("k", "H200", "finals", 4000, 4000, 12.0, speedup=1.3)
FOUND = JobOutcome("H200", 12, 4321, 1.204)
STATES = (
    JobState("waits", "w.cu", "waiting"),
    JobState("runs", "r.cu", "running", seconds=75.0, place="GPU 1", progress=SEARCH, starts=1),
    JobState("ended", "e.cu", "done", seconds=190.2, outcome=FOUND, exit_code=0, starts=1),
    JobState("broken", "b.cu", "failed", exit_code=2, message="[bold] is no kernel", starts=1),
    JobState("kept", "k.cu", "done", seconds=9.0, kept=True, outcome=FOUND, exit_code=0),
)


def drawn(states: tuple[JobState, ...], rows: int = 20, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(campaign_table(states, 3700.0, rows=rows))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_has_a_row_for_each_job() -> None:
    head, *rows, summary = drawn(STATES)
    assert head.split() == ["job", "on", "phase", "trials", "best", "time"]
    cells = {row.split()[0]: " ".join(row.split()[1:]) for row in rows}
    assert cells == {
        "waits": "waiting",
        "runs": "GPU 1 searching 1,200/4,000 1.23x 1 min 15 s",
        "ended": "done in 3 min 10 s 4,321 1.20x 3 min 10 s",
        "broken": "failed: [bold] is no kernel",
        "kept": "done before 4,321 1.20x 9 s",
    }
    assert summary == "2 of 5 jobs done, 1 h 01 min elapsed"


def test_long_texts_are_cut_and_no_column_is_lost() -> None:
    long = JobState(
        "a-kernel-with-quite-a-name-of-its-own",
        "k.cu",
        "running",
        seconds=4000.0,
        place="GPU 10",
        progress=FINALS,
    )
    failed = JobState("broken", "b.cu", "failed", message="no such file or directory " * 9)
    _, first, second, _ = drawn((long, failed), width=80)
    assert all(cell in first for cell in ("GPU 10", "4,000/4,000", "1.30x", "1 h 06 min"))
    assert "…" in second
    assert len(second) <= 80


def test_where_not_all_have_room_those_that_run_come_first() -> None:
    _, *rows, summary = drawn(STATES, rows=2)
    assert [row.split()[0] for row in rows] == ["runs", "broken"]
    assert "3 not shown" in summary


def test_elsewhere_there_is_a_line_for_each_change_and_none_for_a_trial() -> None:
    console = Console(file=io.StringIO(), width=20)
    view = PlainCampaignView(console)
    waiting = JobState("one", "k.cu", "waiting")
    running = JobState("one", "k.cu", "running", place="slot 0", starts=1)
    searching = JobState("one", "k.cu", "running", place="slot 0", starts=1, progress=SEARCH)
    finals = JobState("one", "k.cu", "running", place="slot 0", starts=1, progress=FINALS)
    again = JobState("one", "k.cu", "waiting", message="killed by SIGKILL, started again", starts=1)
    done = JobState("one", "k.cu", "done", seconds=9.0, outcome=FOUND, exit_code=0, starts=2)
    for state in (waiting, running, running, searching, searching, finals, again, done, done):
        view.update((state, STATES[-1]))
    assert isinstance(console.file, io.StringIO)
    said = [line.split(" s  ", 1)[1] for line in console.file.getvalue().splitlines()]
    assert said == [
        "one on slot 0, starting",
        "one on slot 0, searching",
        "one on slot 0, measuring the finalists against the baseline",
        "one, waiting: killed by SIGKILL, started again",
        "one, done in 9 s",
    ]


def test_the_last_lines_have_the_results() -> None:
    assert end_line(STATES[2]) == "ended: done in 3 min 10 s, 4,321 trials, 1.20x"
    assert end_line(STATES[3]) == "broken: failed: [bold] is no kernel"


@pytest.mark.parametrize(
    ("terminal", "expected"), [(True, LiveCampaignView), (False, PlainCampaignView)]
)
def test_the_view_suits_the_console(terminal: bool, expected: type) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal)
    assert type(make_campaign_view(console)) is expected


def test_the_live_view_draws_what_it_was_told() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=9)
    with LiveCampaignView(console) as view:
        view.update(STATES)
        view.update(STATES[:2])
    assert isinstance(console.file, io.StringIO)
    assert "1,200/4,000" in console.file.getvalue()
