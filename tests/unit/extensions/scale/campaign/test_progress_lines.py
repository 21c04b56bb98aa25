"""The lines that a run tells of itself, from the listener to whoever reads them."""

from __future__ import annotations

import os

import pytest

from tuner.app.progress_lines import VARIABLE, ProgressWriter, line_of, progress_writer, read_line
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.model.progress import Phase, Progress, WorkloadProgress
from tuner.model.trial import Status

SMALL, LARGE = Workload.of({"N": 64}), Workload.of({"N": 4096})


def snapshot(phase: Phase = "search") -> Progress:
    workloads = (
        WorkloadProgress(SMALL, 10, 4.0, 2.0, None, {Status.CORRECT: 3, Status.COMPILE: 1}),
        WorkloadProgress(LARGE, 10, 8.0, 1.0, None, {Status.CORRECT: 2}),
    )
    return Progress("scale", "H200", phase, workloads, SMALL, 12.34567, 3.0, 5.0)


def test_a_line_holds_what_a_campaign_shows() -> None:
    told = read_line(line_of(snapshot()))
    assert told is not None
    assert (told.kernel, told.phase, told.workload) == ("scale", "search", "N=64")
    assert (told.trials, told.budget, told.seconds) == (6, 20, 12.346)
    assert told.speedup == 4.0


def test_nothing_is_said_of_a_speedup_before_there_is_one() -> None:
    progress = Progress("k", "d", "baseline", (WorkloadProgress(SMALL, 10),), None, 0.0, 0.0)
    told = read_line(line_of(progress))
    assert told is not None
    assert (told.speedup, told.workload) == (None, None)


@pytest.mark.parametrize("line", [b"", b'{"kernel": "k"', b"{}", b"\xff", b"[1]"])
def test_a_line_that_is_none_is_left_out(line: bytes) -> None:
    assert read_line(line) is None


def test_a_new_phase_is_told_at_once_and_trials_now_and_then() -> None:
    reading, writing = os.pipe()
    writer = ProgressWriter(writing)
    for phase in ("search", "search", "search", "finals", "finals"):
        writer.update(snapshot(phase))
    os.close(writing)
    with os.fdopen(reading, "rb") as lines:
        phases = [told.phase for told in map(read_line, lines) if told]
    assert phases == ["search", "finals"]


def test_a_run_whose_campaign_has_died_stops() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(KeyboardInterrupt):
        ProgressWriter(writing).update(snapshot())
    os.close(writing)


def test_the_environment_names_an_open_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert progress_writer() is None
    for wrong in ("x", "99999"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(InputError, match=f"{VARIABLE} is '{wrong}'"):
            progress_writer()
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    monkeypatch.setenv(VARIABLE, str(writing))
    assert progress_writer() is not None
    assert not os.get_inheritable(writing)
    os.close(reading)
    os.close(writing)
