"""A campaign as a user runs it: several jobs of one small kernel on a recording of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import faults
import pytest

# Enough for a run to be ended three times before its last.
TRIALS = 10
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
    return [(one.workload.key, one.config.key) for one in faults.searched(session)]


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


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """Two jobs on the CPU that last, one of which is to be killed."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    root = faults.written(tmp_path / "slow")
    (root / "two.yaml").write_text(
        "version: 1\nfolder: all\nparallel: 2\n"
        f"defaults: {{device: host, searcher: random, trials: {TRIALS}, mutants: false}}\n"
        "jobs:\n  - {kernel: scale.cu, space: scale.yaml}\n"
        "  - {kernel: scale.cu, space: scale.yaml, name: other, seed: 1}\n",
        encoding="utf-8",
    )
    return root


@pytest.mark.slow
def test_a_campaign_loses_nothing_by_a_killed_child_by_ctrl_c_and_by_its_own_end(
    slow: Path,
) -> None:
    session = slow / "all/scale"
    tried: list[tuple[str, str]] = []

    def goes_on() -> bool:
        return len(trials_of(session)) > len(tried)

    with campaign_in(slow) as process:
        faults.wait_until(goes_on, "a trial", 120)
        child = child_of(process, "scale")
        os.kill(child, signal.SIGKILL)
        faults.wait_until(lambda: has_ended(child), "the child's end")
        tried = trials_of(session)
        faults.wait_until(goes_on, "a trial of the child that was started again", 120)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "scale on slot 0, starting: killed by SIGKILL, started again" in stderr
    assert "interrupted; resume with: tune campaign two.yaml\n" in stderr
    tried = trials_of(session)
    with campaign_in(slow) as process:
        faults.wait_until(goes_on, "a trial of the campaign that goes on", 120)
        child = child_of(process, "scale")
        process.kill()
        process.communicate()
    with campaign_in(slow) as process:
        stdout, stderr = process.communicate(timeout=280)
    assert process.returncode == 0, stderr
    assert [one["status"] for one in json.loads(stdout)["jobs"]] == ["done", "done"]
    assert has_ended(child)
    for name in ("scale", "other"):
        found = trials_of(slow / "all" / name)
        assert len(found) == len(set(found)) >= TRIALS
    assert set(trials_of(session)) > set(tried)


@contextmanager
def campaign_in(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the campaign there as a process; its jobs end by themselves after it."""
    process = faults.started("campaign", "two.yaml", "--json", folder=root)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def child_of(process: subprocess.Popen[str], name: str) -> int:
    for one in faults.descendants(process.pid):
        words = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
        if b"tuner" in words and f"all/{name}".encode() in words:
            return one.pid
    raise AssertionError(f"no child runs {name}")


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
