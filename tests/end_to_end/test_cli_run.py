"""`tune KERNEL.cu` against a recording, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tuner.device.recorded.recording import RecordedDevice
from tuner.model.errors import DeviceLost

KEYS = (
    "kernel device recorded protocol on_cpu session seconds trials checks surroundings workloads "
    "rounds time verified_by dispatch"
)
WORKLOAD_KEYS = (
    "workload held_out baseline_us tuned_us speedup interval verdict surroundings alone_us "
    "alone_baseline_us alone_speedup serves roofline candidate config "
    "registers occupancy"
)


def only_session(root: Path) -> Path:
    (session,) = (root / "sessions").iterdir()
    return session


def test_a_run_says_that_it_is_recorded_finds_the_best_and_says_where_it_is(project, tune) -> None:
    done = tune("kernels/scale.cu")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "RECORDED: no GPU is used; answers come from measurements made on an NVIDIA H200 on "
        "2026-11-20 (kernels/recordings/nvidia-h200/scale.json.xz)"
    )
    session = only_session(project.root).relative_to(project.root)
    assert session.name.startswith("scale-")
    for part in (session, session / "tuned", session / "report.html"):
        assert f" {part}" in done.stdout
        assert (project.root / part).exists()
    for part in ("N=1048576", "2.00x", "block_size=128", "per_thread=4", "held out"):
        assert part in done.stdout
    assert done.stderr == ""


def test_json_is_one_object_and_a_finished_session_is_resumed_at_no_cost_and_agrees(
    project, tune
) -> None:
    done = tune("kernels/scale.cu", "--json", "--session", "mine")
    found = json.loads(done.stdout)
    assert set(found) == set(KEYS.split())
    assert found["kernel"] == "scale"
    assert found["recorded"] is True
    assert found["trials"]["correct"] > 0
    assert [w["workload"] for w in found["workloads"]] == [
        {"N": 4096},
        {"N": 1048576},
        {"N": 100000},
    ]
    assert [w["held_out"] for w in found["workloads"]] == [False, False, True]
    assert all(set(w) == set(WORKLOAD_KEYS.split()) for w in found["workloads"])
    assert found["workloads"][1]["config"] == {"block_size": 128, "per_thread": 4}
    low, high = found["workloads"][1]["interval"]
    assert low <= found["workloads"][1]["speedup"] <= high
    assert done.stderr.startswith("RECORDED")

    tuned = project.root / "mine/tuned"
    before = {path.name: path.read_text(encoding="utf-8") for path in tuned.iterdir()}
    assert len(before) == 3
    shutil.rmtree(tuned)
    again = tune("--resume", "mine", "--json", "--quiet")
    assert again.exit_code == 0
    assert again.stderr == ""
    resumed = json.loads(again.stdout)
    assert set(resumed) == set(KEYS.split())
    assert resumed["workloads"] == found["workloads"]
    assert resumed["trials"] == found["trials"]
    assert {path.name: path.read_text(encoding="utf-8") for path in tuned.iterdir()} == before


def test_a_run_without_a_result_says_why(project, tune) -> None:
    project.edit(project.space, "tolerance:", "limits: {max_registers: 1}\ntolerance:")
    done = tune("kernels/scale.cu", "--trials", "2", "--quiet")
    assert done.exit_code == 0
    assert re.search(r"No result: none of \d+ trials was correct\.", done.stdout)
    assert "x resource_limit: " in done.stdout
    assert "over `max_registers: 1`" in done.stdout
    assert "tuned kernels" not in done.stdout
    assert "searching" not in done.stdout
    assert done.stdout.startswith("RECORDED")
    *_, report, verdict = done.stdout.splitlines()
    assert report.startswith("report ")
    assert verdict.startswith("No result: ")


def test_given_workloads_take_the_place_of_the_declared_ones_and_trials_bound_each(tune) -> None:
    words = ("--workload", "N=4096", "--workload", "N=4096")
    (workload,) = json.loads(tune("kernels/scale.cu", "--json", *words).stdout)["workloads"]
    assert workload["workload"] == {"N": 4096}
    assert workload["config"] == {"block_size": 64, "per_thread": 1}
    done = tune("kernels/scale.cu", "--json", "--trials", "3", "--searcher", "random")
    assert sum(json.loads(done.stdout)["trials"].values()) == 6


def test_a_mix_is_judged_by_its_time_in_its_report_and_when_it_is_resumed(project, tune) -> None:
    done = tune("kernels/scale.cu", "--mix", "--json", "--session", "mine")
    found = json.loads(done.stdout)
    assert found["mix"]["weights"] == {"N=4096": 1.0, "N=1048576": 1.0}
    before, after = (
        sum(w[name] for w in found["workloads"] if not w["held_out"])
        for name in ("baseline_us", "tuned_us")
    )
    assert found["mix"]["baseline_us"] == pytest.approx(before, abs=1e-3)
    assert found["mix"]["tuned_us"] == pytest.approx(after, rel=0.02)
    again = tune("kernels/scale.cu", "--mix", "--resume", "mine")
    assert (
        f"{found['mix']['speedup']:.2f}x faster than the baseline (time in all of a mix of 2 "
        in (" ".join(again.stdout.split()))
    )


@pytest.mark.parametrize(
    ("interrupt", "extra"),
    [
        (lambda process: process.send_signal(signal.SIGTERM), ("--json", "--quiet")),
        (lambda process: os.killpg(process.pid, signal.SIGINT), ()),
    ],
    ids=["SIGTERM with --json", "Ctrl-C of a terminal, to the whole group"],
)
def test_an_interrupted_run_says_how_to_resume_and_can_be(
    project, start, tune, interrupt: Callable[[Popen[str]], None], extra: tuple[str, ...]
) -> None:
    process = start("kernels/scale.cu", "--session", "my session", *extra)
    wait_for_a_trial(project.root / "my session")
    interrupt(process)
    out, err = process.communicate(timeout=60)
    assert err == "interrupted; resume with: tune --resume 'my session'\n"
    assert process.returncode == 130
    if extra:
        assert out == ""
    else:
        assert "best so far" in out
        assert "my session/report.html" in out
        assert (project.root / "my session" / "report.html").exists()
    assert_resumes(project.root / "my session", tune)


def test_a_run_interrupted_while_it_writes_its_report_says_how_to_get_it(
    project, tune, monkeypatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tuner.cli.ending.write_report", interrupt)
        ended = tune("kernels/scale.cu", "--trials", 5, "--session", "mine", "--json", "--quiet")
    assert (ended.exit_code, ended.stdout) == (130, "")
    assert ended.stderr == "interrupted; resume with: tune --resume mine\n"
    assert not (project.root / "mine" / "report.html").exists()
    assert tune("--resume", "mine", "--quiet").exit_code == 0
    assert (project.root / "mine" / "report.html").exists()


def assert_resumes(session: Path, tune) -> None:
    before = trials(session)
    resumed = tune("--resume", session.name, "--json")
    assert resumed.exit_code == 0, resumed.stderr
    assert len(json.loads(resumed.stdout)["workloads"]) == 3
    after = trials(session)
    assert len(before) < len(after)
    assert after[: len(before)] == before


def trials(session: Path) -> list[tuple[object, ...]]:
    with closing(
        sqlite3.connect(f"{(session / 'session.db').as_uri()}?mode=ro", uri=True)
    ) as connection:
        return connection.execute(
            "select * from records where kind = 'trial' order by id"
        ).fetchall()


def wait_for_a_trial(session: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        # Before the tables are there it cannot be opened, or lacks them.
        with suppress(sqlite3.OperationalError):
            if trials(session):
                return
        time.sleep(0.01)
    raise AssertionError("no trial was recorded")


def test_a_run_on_two_members_finds_the_same_and_is_resumed_with_one(project, tune) -> None:
    words = (project.kernel, "--device", "recorded", "--quiet", "--json")
    alone = json.loads(tune(*words).stdout)
    spread = json.loads(tune(*words, "--gpus", "2", "--session", "spread").stdout)
    assert spread["gpus"]["members"] == ["member 0", "member 1"]
    assert {one["gpu"] for one in spread["workloads"]} == {"member 0", "member 1"}
    assert "gpus" not in alone

    def found(run: dict[str, Any]) -> list[tuple[object, ...]]:
        return [(one["workload"], one["config"], one["speedup"]) for one in run["workloads"]]

    assert found(spread) == found(alone)
    resumed = tune("--resume", "spread", "--gpus", "1", "--json", "--quiet")
    assert resumed.exit_code == 0, resumed.output
    assert found(json.loads(resumed.stdout)) == found(alone)


def test_a_device_that_is_lost_ends_the_run_with_what_resumes_it(
    tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tune("kernels/scale.cu", "--device", "recorded", "--quiet", "--session", "whole")
    assert first.exit_code == 0, first.output
    answer, left = RecordedDevice.run, [6]

    def run(self: RecordedDevice, *words: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise DeviceLost("it fell off the bus")
        return answer(self, *words, **options)

    with monkeypatch.context() as lost:
        lost.setattr(RecordedDevice, "run", run)
        words = ("kernels/scale.cu", "--device", "recorded", "--gpus", "2", "--session", "lost")
        ended = tune(*words)
    assert ended.exit_code == 2
    assert ended.stderr.count("Error:") == 1
    assert "member 0: it fell off the bus; member 1: it fell off the bus" in ended.stderr
    assert "go on with: tune --resume lost" in ended.stderr
    assert tune("--resume", "lost", "--quiet").exit_code == 0
