"""`tune KERNEL.cu` against a recording, as a user runs it."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from pathlib import Path

import pytest

KEYS = {"kernel", "device", "recorded", "session", "seconds", "trials", "workloads"}
WORKLOAD_KEYS = {
    "workload",
    "held_out",
    "baseline_us",
    "tuned_us",
    "speedup",
    "interval",
    "roofline",
    "config",
    "registers",
    "occupancy",
}


def only_session(root: Path) -> Path:
    (session,) = (root / "sessions").iterdir()
    return session


def test_a_run_says_that_it_is_recorded_finds_the_best_and_says_where_it_is(project, tune) -> None:
    done = tune("kernels/scale.cu")
    assert done.returncode == 0, done.stderr
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
    assert "block_size=128 per_thread=4" in " ".join(done.stdout.split())
    assert "T" not in done.stderr


def test_json_is_one_object_and_progress_goes_to_standard_error(tune) -> None:
    done = tune("kernels/scale.cu", "--json")
    found = json.loads(done.stdout)
    assert set(found) == KEYS
    assert found["kernel"] == "scale"
    assert found["recorded"] is True
    assert found["trials"]["correct"] > 0
    assert [w["workload"] for w in found["workloads"]] == [
        {"N": 4096},
        {"N": 1048576},
        {"N": 100000},
    ]
    assert [w["held_out"] for w in found["workloads"]] == [False, False, True]
    assert all(set(w) == WORKLOAD_KEYS for w in found["workloads"])
    assert found["workloads"][1]["config"] == {"block_size": 128, "per_thread": 4}
    low, high = found["workloads"][1]["interval"]
    assert low <= found["workloads"][1]["speedup"] <= high
    assert done.stderr.startswith("RECORDED")


def test_quiet_json_prints_the_object_and_nothing_else(tune) -> None:
    done = tune("kernels/scale.cu", "--json", "--quiet", "--trials", "2")
    assert done.stderr == ""
    assert set(json.loads(done.stdout)) == KEYS


def test_quiet_shows_only_the_end(tune) -> None:
    done = tune("kernels/scale.cu", "--quiet", "--trials", "2")
    assert "searching" not in done.stdout
    assert done.stdout.startswith("RECORDED")
    assert "report" in done.stdout.splitlines()[-1]


def test_given_workloads_take_the_place_of_the_declared_ones(tune) -> None:
    done = tune("kernels/scale.cu", "--json", "--workload", "N=4096", "--workload", "N=4096")
    (workload,) = json.loads(done.stdout)["workloads"]
    assert workload["workload"] == {"N": 4096}
    assert workload["config"] == {"block_size": 64, "per_thread": 1}


def test_trials_bound_what_is_tried_per_workload(tune) -> None:
    done = tune("kernels/scale.cu", "--json", "--trials", "3", "--searcher", "random")
    assert sum(json.loads(done.stdout)["trials"].values()) == 6


def test_a_finished_session_is_resumed_at_no_cost_and_agrees(project, tune) -> None:
    first = json.loads(tune("kernels/scale.cu", "--json", "--session", "mine").stdout)
    again = tune("--resume", "mine", "--json")
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    assert second["workloads"] == first["workloads"]
    assert second["trials"] == first["trials"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("extra", [(), ("--json", "--quiet")], ids=["plain", "json"])
def test_an_interrupted_run_says_how_to_resume_and_can_be(
    project, start, tune, number: signal.Signals, extra: tuple[str, ...]
) -> None:
    process = start("kernels/scale.cu", "--session", "my session", *extra)
    database = project.root / "my session" / "session.db"
    wait_for_a_trial(database)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("the run was over before the signal")
    assert process.returncode == 130
    assert "interrupted; resume with: tune --resume 'my session'" in err
    assert "Traceback" not in err
    if extra:
        assert out == ""
    resumed = tune("--resume", "my session", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert len(json.loads(resumed.stdout)["workloads"]) == 3


def wait_for_a_trial(database: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if database.exists():
            connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)
            try:
                if connection.execute("select count(*) from trials").fetchone()[0]:
                    return
            except sqlite3.OperationalError:
                pass  # the tables are being made
            finally:
                connection.close()
        time.sleep(0.01)
    raise AssertionError("no trial was recorded")
