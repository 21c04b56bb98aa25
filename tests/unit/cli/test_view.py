"""What the live and the plain view show, on consoles that keep what is printed."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from tuner.cli import ending, view
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.progress import Phase, Progress, WorkloadProgress
from tuner.model.trial import Status, Trial
from tuner.process.tally import note_begin, note_end
from tuner.report.data import ReportData

SMALL, LARGE = Workload.of({"T": 1, "D": 64}), Workload.of({"T": 8192, "D": 64})


def snapshot(
    seconds: float = 0.0,
    *,
    phase: Phase = "search",
    done: int = 0,
    current: Workload | None = SMALL,
    remaining_s: float | None = None,
) -> Progress:
    first = WorkloadProgress(
        SMALL,
        budget=20,
        baseline_us=4.0,
        best_us=2.0 if done else None,
        counts={Status.RESOURCE_LIMIT: 1, Status.CORRECT: done - 1} if done else {},
    )
    second = WorkloadProgress(LARGE, budget=20)
    return Progress("scale", "H200", phase, (first, second), current, seconds, 2.5, remaining_s)


def console(*, width: int = 160, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, height=30, force_terminal=terminal)


def text(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def lines_of(*snapshots: Progress) -> list[str]:
    target = console(width=40)
    with view.PlainView(target) as plain:
        for progress in snapshots:
            plain.update(progress)
    return text(target).splitlines()


def test_a_change_of_phase_prints_one_line_however_soon_it_comes() -> None:
    lines = lines_of(
        snapshot(0.0, phase="baseline"),
        snapshot(0.1, phase="baseline"),
        snapshot(0.2, phase="search"),
        snapshot(0.3, phase="search"),
    )
    assert len(lines) == 2
    assert "measuring the baseline" in lines[0]
    assert "searching" in lines[1]


def test_trials_print_at_most_one_line_a_second_and_one_every_five_seconds() -> None:
    every_tenth = (snapshot(t / 10, done=min(20, 1 + t)) for t in range(100))
    assert 3 <= len(lines_of(*every_tenth)) <= 10
    standing_still = (snapshot(float(t), done=1) for t in range(21))
    assert len(lines_of(*standing_still)) == 5


def test_the_end_of_a_workload_prints_what_became_of_it_however_soon_it_comes() -> None:
    lines = lines_of(
        snapshot(0.0, done=19),
        snapshot(0.1, done=20, current=LARGE),
        snapshot(0.2, done=20, current=LARGE, phase="finals"),
    )
    assert len(lines) == 4
    assert "T=1 D=64, 20/20 trials (19 correct, 1 resource_limit), best 2.00 us 2.00x" in lines[1]
    assert "T=8192 D=64, 0/20 trials (none yet)" in lines[2]
    assert "finalists" in lines[3]


def test_a_plain_line_holds_everything_and_is_never_wrapped() -> None:
    line = lines_of(snapshot(0.0), snapshot(7.0, done=8, remaining_s=95.0))[1]
    assert line == (
        "   7.0 s  T=1 D=64, 8/20 trials (7 correct, 1 resource_limit), best 2.00 us 2.00x, "
        "2.5 trials/s, 1 min 35 s left"
    )


def test_the_live_table_shows_every_workload_with_its_best_and_what_is_left() -> None:
    target = console()
    target.print(view.live_table(snapshot(65.0, done=8, remaining_s=30.0), rows=10))
    shown = text(target)
    for part in ("scale on H200", "T=8192 D=64", "2.00x", "8/20", "7 correct, 1 resource_limit"):
        assert part in shown
    assert "20% of the trials, 2.5 trials/s, 30 s left, 1 min 05 s elapsed" in shown


def test_more_workloads_than_rows_shows_those_around_the_current_one() -> None:
    many = tuple(WorkloadProgress(Workload.of({"T": t}), budget=5) for t in range(1, 41))
    progress = Progress("k", "d", "search", many, Workload.of({"T": 30}), 1.0, 0.0)
    target = console()
    target.print(view.live_table(progress, rows=10))
    shown = text(target)
    assert "T=30 " in shown
    assert "T=5 " not in shown
    assert "30 workloads not shown" in shown


def test_the_live_table_leaves_room_for_numbers_beside_many_axes() -> None:
    same = {f"a_long_name_{n}": 128 for n in range(8)}
    many = tuple(WorkloadProgress(Workload.of({"T": t, **same}), budget=5) for t in (1, 2))
    progress = Progress("k", "d", "search", many, many[0].workload, 1.0, 0.0)
    target = console()
    target.print(view.live_table(progress, rows=10))
    assert "T=1 " in text(target)
    assert "0/5" in text(target)
    assert "a_long_name" not in text(target)


def test_a_slow_search_counts_by_the_minute() -> None:
    slow = replace(snapshot(done=2), trials_per_second=0.04)
    assert "2.4 trials/min" in view.search_status(slow, SMALL)


def test_a_narrow_live_table_has_fewer_columns_and_clips_none() -> None:
    target = console(width=40)
    target.print(view.live_table(snapshot(65.0, done=8, remaining_s=30.0), rows=10, width=40))
    shown = text(target)
    assert "best us" in shown
    assert "2.00x" in shown
    assert "baseline" not in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_the_live_table_of_a_phase_without_a_current_workload_is_drawn_too() -> None:
    target = console()
    target.print(view.live_table(snapshot(phase="done", current=None), rows=1))
    assert "done, 0% of the trials" in text(target)


def test_the_live_view_draws_the_last_snapshot_and_cleans_up() -> None:
    target = console(terminal=True)
    with view.LiveView(target) as live:
        live.update(snapshot(done=3))
    assert "3/20" in text(target)


@pytest.mark.parametrize(
    ("terminal", "quiet", "expected"),
    [
        (True, False, view.WaitingView),
        (False, False, view.WaitingView),
        (True, True, view.View),
        (False, True, view.View),
    ],
)
def test_the_view_suits_the_console(terminal: bool, quiet: bool, expected: type) -> None:
    assert type(view.make_view(console(terminal=terminal), quiet=quiet)) is expected


def test_what_takes_long_is_said_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "QUIET_S", 0.2)
    monkeypatch.setattr(view, "LOOK_S", 0.05)
    target = console()
    with view.WaitingView(view.PlainView(target)) as waiting:
        waiting.update(snapshot(1.0, phase="baseline"))
        note_begin(1, "tune-verifier/compute_reference")
        time.sleep(1.2)
        note_end(1)
        note_begin(1, "tune-verifier/check")
        time.sleep(0.4)
        note_end(1)
        waiting.update(snapshot(2.0, phase="done", current=None))
    first, *said, last = text(target).splitlines()
    assert "measuring the baseline" in first
    *said, changed = said
    assert 2 <= len(said) <= 3, "each after twice as long"
    assert all("s  computing the reference, T=1 D=64" in line for line in said)
    assert "comparing outputs with the reference, T=1 D=64" in changed
    assert "done" in last


def test_a_live_view_shows_what_is_waited_for_until_the_next_snapshot() -> None:
    live = view.LiveView(console(terminal=True))
    with live:
        live.update(snapshot(done=3))
        live.wait(snapshot(9.0, done=3), "computing the reference")
        target = console()
        target.print(live._render())
        assert "computing the reference" in text(target)
        live.update(snapshot(10.0, done=4))
        target.print(live._render())
    assert text(target).count("computing the reference") == 1


def test_durations_are_written_as_people_say_them() -> None:
    cases = {0.4: "0 s", 59.4: "59 s", 59.6: "1 min 00 s", 3599: "59 min 59 s", 7500: "2 h 05 min"}
    assert {seconds: view.duration(seconds) for seconds in cases} == cases


def test_every_phase_has_words():
    assert set(view.PHASES) == set(get_args(Phase))


def ended(*reasons: str, recorded: bool) -> str:
    trials = [
        Trial(
            candidate="initial",
            workload=SMALL,
            config=Config.of({"B": number}),
            status=Status.NOT_RECORDED,
            reason=reason,
        )
        for number, reason in enumerate(reasons)
    ]
    data = ReportData("k", "CPU", recorded, records=tuple((one, 0.0) for one in trials))
    target = console()
    ending.print_end(data, Path("session"), target, resumable=False)
    return text(target)


def test_trials_without_an_answer_are_counted_and_a_library_that_is_missing_is_named() -> None:
    lacks = "No module named 'engine'"
    assert f"2 trials could not run here: {lacks}\n" in ended(lacks, lacks, recorded=False)
    assert "1 trial had no answer in the recording" in ended("of other sizes", recorded=True)
    assert "recording" not in ended(lacks, recorded=False)
    assert "could not run" not in ended(recorded=False)


def test_a_command_that_takes_long_says_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "QUIET_S", 0.05)
    lines: list[str] = []
    with view.say_while("checking scale.yaml", lines.append):
        time.sleep(0.3)
    assert lines[0].endswith(" s  checking scale.yaml")
    assert 2 <= len(lines) <= 5
    quick: list[str] = []
    with view.say_while("checking scale.yaml", quick.append):
        pass
    assert quick == []


def test_what_comes_before_the_first_snapshot_is_said_where_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view, "QUIET_S", 0.05)
    monkeypatch.setattr(view, "LOOK_S", 0.02)
    target = console()
    with view.WaitingView(view.PlainView(target)):
        time.sleep(0.3)
    assert "reading the kernel and opening the device" in text(target)
    live = console(terminal=True)
    with view.WaitingView(view.LiveView(live)):
        time.sleep(0.3)
    assert "reading the kernel and opening the device" in text(live)
