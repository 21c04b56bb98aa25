"""A campaign as a user runs it: several jobs of one small kernel on a recording of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import faults
import pytest

from tuner.session.session import Session
from tuner.session.store import DATABASE

FILE = """\
version: 1
folder: all
parallel: 2
defaults: {device: recorded, trials: 4}
jobs:
  - {kernel: kernels/scale.cu, name: small, workloads: [{N: 4096}]}
  - {kernel: kernels/scale.cu, name: large, workloads: [{N: 1048576}]}
"""


@pytest.fixture
def campaign(project) -> Path:
    path = project.root / "two.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def trials_of(session: Path) -> list[tuple[str, str]]:
    with closing(Session.open(session, read_only=True)) as known:
        assert known.state == "complete"
        return [(one.workload.key, one.config.key) for one in known.trials()]


def test_all_jobs_are_run_and_what_is_done_is_not_run_again(project, tune, campaign) -> None:
    result = tune("campaign", campaign)
    assert result.exit_code == 0, result.output
    assert "small on slot 0, starting" in result.output
    assert "2 of 2 jobs done" in result.output
    folder = project.root / "all"
    index = (folder / "index.html").read_text(encoding="utf-8")
    for name in ("small", "large"):
        assert f'<a href="{name}/report.html">report</a>' in index
        assert (folder / name / "report.html").is_file()
        assert len(trials_of(folder / name)) == 4
    again = json.loads(tune("campaign", campaign, "--json").stdout)
    assert again["exit_code"] == 0
    assert [(one["status"], one["kept"]) for one in again["jobs"]] == [("done", True)] * 2
    assert all(one["speedup"] > 1 for one in again["jobs"])

    project.edit(project.template, "2.0f * in", "2.0f  * in")
    assert tune("campaign", campaign, "--dry-run").stdout.splitlines() == [
        "small",
        "large",
        "2 of 2 jobs are left",
    ]


def test_a_gpu_without_a_job_is_told_of(
    project, tune, campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.extensions.scale.campaign.file.gpu_count", lambda: 3)
    campaign.write_text(FILE.replace("device: recorded, ", ""), encoding="utf-8")
    result = tune("campaign", campaign, "--dry-run")
    assert result.stdout.splitlines() == ["small", "large", "2 of 2 jobs are left"]
    assert "GPU 2 has no job: each job uses one GPU; `tune KERNEL --gpus all`" in result.stderr


@pytest.mark.slow
def test_a_changed_reference_is_run_anew_and_the_old_session_stays(project, tune, campaign) -> None:
    one_job, _, _ = FILE.partition("  - {kernel: kernels/scale.cu, name: large")
    campaign.write_text(one_job, encoding="utf-8")
    assert tune("campaign", campaign).exit_code == 0
    reference = project.root / "kernels/scale.py"
    reference.write_text(reference.read_text() + "\n", encoding="utf-8")
    assert tune("campaign", campaign).exit_code == 0
    (aside,) = (project.root / "all").glob("small-*")
    assert len(trials_of(aside)) == len(trials_of(project.root / "all/small")) == 4


def test_one_job_that_fails_costs_no_other(project, tune, campaign) -> None:
    text = FILE.replace("{N: 1048576}", "{N: 77}")
    campaign.write_text(text, encoding="utf-8")
    result = tune("campaign", campaign)
    assert result.exit_code == 2
    assert "large: failed: " in result.output
    assert "no measurements for workload N=77" in result.output
    assert len(trials_of(project.root / "all/small")) == 4


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """Two jobs on the CPU that last, one of which is to be killed."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    root = faults.written(tmp_path / "slow")
    (root / "two.yaml").write_text(
        "version: 1\nfolder: all\nparallel: 2\n"
        "defaults: {device: host, searcher: random, trials: 6, mutants: false}\n"
        "jobs:\n  - {kernel: scale.cu, space: scale.yaml}\n"
        "  - {kernel: scale.cu, space: scale.yaml, name: other, seed: 1}\n",
        encoding="utf-8",
    )
    return root


def started(root: Path, *words: str) -> subprocess.Popen[str]:
    return faults.started("campaign", "two.yaml", *words, folder=root)


def has_trials(session: Path) -> Callable[[], bool]:
    def look() -> bool:
        if not (session / DATABASE).exists():
            return False
        with closing(Session.open(session, read_only=True)) as known:
            return bool(known.trials())

    return look


def child_of(process: subprocess.Popen[str], name: str) -> int:
    for one in faults.descendants(process.pid):
        words = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
        if b"tuner" in words and f"all/{name}".encode() in words:
            return one.pid
    raise AssertionError(f"no child runs {name}")


@pytest.mark.slow
def test_a_killed_child_is_started_again_and_loses_nothing(slow: Path) -> None:
    process = started(slow, "--json")
    try:
        faults.wait_until(has_trials(slow / "all/scale"), "a trial", 120)
        os.kill(child_of(process, "scale"), signal.SIGKILL)
        before = len(_trials(slow / "all/scale"))
        stdout, stderr = process.communicate(timeout=240)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, stderr
    assert "scale on slot 0, starting: killed by SIGKILL, started again" in stderr
    assert [one["status"] for one in json.loads(stdout)["jobs"]] == ["done", "done"]
    for name in ("scale", "other"):
        tried = trials_of(slow / "all" / name)
        assert len(tried) == len(set(tried)) >= 6
    assert before >= 1


def assert_goes_on(root: Path) -> None:
    """Start the campaign again, and fail unless it does all that is left."""
    again = started(root, "--json")
    try:
        stdout, stderr = again.communicate(timeout=280)
    finally:
        again.kill()  # its jobs end by themselves then
        again.wait()
    assert again.returncode == 0, stderr
    assert [one["status"] for one in json.loads(stdout)["jobs"]] == ["done", "done"]


@pytest.mark.slow
def test_an_interrupted_campaign_goes_on_with_the_same_command(slow: Path) -> None:
    process = started(slow)
    try:
        faults.wait_until(has_trials(slow / "all/scale"), "a trial", 120)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "interrupted; resume with: tune campaign two.yaml\n" in stderr
    left = len(_trials(slow / "all/scale"))
    assert_goes_on(slow)
    assert len(trials_of(slow / "all/scale")) >= left


@pytest.mark.slow
def test_a_killed_campaign_leaves_no_child_behind_and_goes_on(slow: Path) -> None:
    process = started(slow)
    faults.wait_until(has_trials(slow / "all/scale"), "a trial", 120)
    child = child_of(process, "scale")
    process.kill()
    process.communicate()
    assert_goes_on(slow)
    assert not Path(f"/proc/{child}").exists() or _is_zombie(child)


@pytest.mark.slow
def test_a_disk_that_fills_up_is_one_object_and_one_error_and_the_campaign_goes_on(
    slow: Path, tmp_path: Path
) -> None:
    library = faults.build_disk_full(tmp_path, shutil.which("g++") or "")
    limits = {"LD_PRELOAD": str(library), "DISK_FULL_FOLDER": str(slow / "all/.campaign.json")}
    # Room for what is written until both jobs run.
    environment = {**os.environ, **limits, "DISK_FULL_AFTER": "700"}
    words = ("campaign", "two.yaml", "--json")
    process = faults.started(*words, folder=slow, environment=environment)
    try:
        stdout, stderr = process.communicate(timeout=240)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 2, stderr
    said = "all: cannot write here: No space left on device"
    assert f"Error: {said}" in stderr
    assert "Traceback" not in stderr
    found = json.loads(stdout)
    assert found["exit_code"] == 2
    assert found["error"].startswith(said)
    assert all(one["status"] in ("done", "stopped", "waiting") for one in found["jobs"])
    assert_goes_on(slow)


def _trials(session: Path) -> list[object]:
    with closing(Session.open(session, read_only=True)) as known:
        return list(known.trials())


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
