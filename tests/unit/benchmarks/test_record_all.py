"""The campaign that renews recordings and results: what is done is not done again."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import record_all
from record_all import Campaign, Job, operators, recording_job


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.cu"
    path.write_text("one")
    return path


def queue_of(*gpus: int) -> SimpleQueue[int]:
    free: SimpleQueue[int] = SimpleQueue()
    for gpu in gpus:
        free.put(gpu)
    return free


def test_the_gpu_is_free_while_a_job_finishes(tmp_path: Path, source: Path) -> None:
    gpus, seen = queue_of(1), []
    job = Job("one", lambda gpu: None, [source], finish=lambda: seen.append(gpus.get_nowait()))
    campaign = Campaign(tmp_path)
    campaign.run(job, gpus)
    assert seen == [1]
    assert "one" in campaign.done


def test_what_is_done_is_left_out_until_its_files_change(tmp_path: Path, source: Path) -> None:
    ran: list[int] = []
    job = Job("one", ran.append, [source])
    Campaign(tmp_path).run(job, queue_of(3))
    again = Campaign(tmp_path)
    assert ran == [3]
    assert again.left([job]) == []
    assert again.done["one"]["seconds"] >= 0
    source.write_text("two")
    assert again.left([job]) == [job]


def test_a_job_that_failed_counts_with_all_its_attempts(tmp_path: Path, source: Path) -> None:
    outcomes = [1, 0]

    def run(gpu: int) -> None:
        time.sleep(0.2)
        subprocess.run(["sh", "-c", f"exit {outcomes.pop(0)}"], check=True)

    job = Job("one", run, [source])
    first = Campaign(tmp_path)
    first.run(job, queue_of(0))
    first.save()
    assert first.failed == ["one"]
    again = Campaign(tmp_path)
    again.run(job, queue_of(0))
    assert again.runs == 2
    assert again.done["one"]["seconds"] >= 0.4


def test_the_time_of_all_runs_is_added_up(tmp_path: Path) -> None:
    first = Campaign(tmp_path)
    time.sleep(0.2)
    first.save()
    again = Campaign(tmp_path)
    assert again.wall_s >= 0.2
    again.forget()
    assert again.wall_s < 0.2


def test_a_job_that_fails_is_told_and_tried_again(tmp_path: Path, source: Path) -> None:
    def fail(gpu: int) -> None:
        raise subprocess.CalledProcessError(2, "tune")

    job = Job("one", fail, [source])
    campaign = Campaign(tmp_path)
    gpus = queue_of(0)
    campaign.run(job, gpus)
    assert gpus.get_nowait() == 0
    assert campaign.failed == ["one"]
    assert Campaign(tmp_path).left([job]) == [job]


def test_a_recording_has_its_peers_and_its_result_is_of_its_own_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(record_all.subprocess, "run", run)
    job = recording_job("rmsnorm", tmp_path, 7)
    job.run(1)
    job.finish()
    recorded, summarized = ran
    assert {"record", "--peers", "cuda:1", "7", str(tmp_path / "rmsnorm")} <= set(recorded)
    assert summarized[2:4] == [str(tmp_path / "rmsnorm"), "--out"]


def test_no_campaign_starts_from_a_changed_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.device.select.gpu_count", lambda: 1)
    monkeypatch.setattr(sys, "argv", ["record_all.py"])
    monkeypatch.setenv("TUNE_COMMIT", "0123456789ab-dirty")
    with pytest.raises(SystemExit, match="0123456789ab-dirty"):
        record_all.main()


def test_every_operator_has_the_files_that_its_job_depends_on(tmp_path: Path) -> None:
    assert len(operators()) == 15
    for name in operators():
        assert recording_job(name, tmp_path, 1).key
