"""One run over two GPUs of a host: each workload has its own, and one of them can go on alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faults import searched, wait_until

from tuner.device.select import gpu_count

pytestmark = pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")

KERNEL = Path(__file__).parents[2] / "kernels/sglang/silu_and_mul.cu"
WORKLOADS = ("T=16,D=14336", "T=1024,D=14336")
TIMEOUT_S = 240.0


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", *words, "--json", "--quiet"],
        cwd=folder,
        env={**os.environ, "TUNE_STORE": "none"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(run: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 0, err
    return dict(json.loads(out))


def words_of_a_run(trials: int) -> list[str]:
    workloads = [word for one in WORKLOADS for word in ("--workload", one)]
    return [str(KERNEL), *workloads, "--trials", str(trials), "--session", "spread"]


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """The folder of a run on both GPUs that was interrupted in its search."""
    run = started(tmp_path, *words_of_a_run(40), "--gpus", "0,1")
    wait_until(lambda: len(searched(tmp_path / "spread")) >= 6, "trials", TIMEOUT_S)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 130
    return tmp_path


def test_each_workload_is_timed_on_one_of_them(tmp_path: Path) -> None:
    found = ended(started(tmp_path, *words_of_a_run(12), "--gpus", "all"))
    members = found["gpus"]["members"]
    assert len(members) == gpu_count()
    homes = {one["gpu"] for one in found["workloads"]}
    assert len(homes) == 2, homes
    assert homes <= set(members)
    times_us = found["gpus"]["reference_us"]
    assert set(times_us) == set(members)
    assert max(times_us.values()) < 1.1 * min(times_us.values())
    assert not found["gpus"]["lost"]


def test_a_run_on_both_goes_on_with_one(interrupted: Path) -> None:
    found = ended(started(interrupted, "--resume", "spread", "--gpus", "1"))
    (member,) = found["gpus"]["members"]
    assert [one["gpu"] for one in found["workloads"]] == [member] * len(WORKLOADS)
    # What the other one had timed goes on in its terms.
    (factor,) = found["gpus"]["factors"].values()
    assert 0.9 < factor < 1.1
    assert all(0.3 < one["speedup"] < 10 for one in found["workloads"])
