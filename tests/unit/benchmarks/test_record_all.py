"""The campaign that renews recordings and results: its jobs, and what it writes at last."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import record_all
from record_all import BENCHMARKS, benchmark_job, operators, recording_job

from tuner.campaign.jobs import CampaignJob
from tuner.campaign.ledger import locked
from tuner.campaign.run import INTERRUPTED, Campaign


def test_a_recording_has_its_peers_and_its_result_is_of_its_own_session(tmp_path: Path) -> None:
    job = recording_job("rmsnorm", tmp_path, 7, compilers=3)
    session = str(tmp_path / "rmsnorm")
    assert {"record", "--peers", "cuda", "7", session} <= set(job.start)
    assert job.resume[3:] == ("record", "--resume", session, "--jobs", "3")
    ((_, script, *words),) = job.finish
    assert Path(script).name == "summarize_session.py"
    assert words[:2] == [session, "--out"]
    assert (job.session, job.needs_gpu, job.alone) == (tmp_path / "rmsnorm", True, False)


def test_every_operator_has_the_files_that_its_job_depends_on(tmp_path: Path) -> None:
    assert len(operators()) == 15
    keys = {recording_job(name, tmp_path, 1, 1).key for name in operators()}
    assert len(keys) == 15


def test_another_number_of_trials_is_another_recording(tmp_path: Path) -> None:
    keys = {recording_job("rmsnorm", tmp_path, trials, 1).key for trials in (7, 7, 8)}
    assert len(keys) == 2


def test_benchmarks_run_on_a_gpu_and_the_timing_ones_alone() -> None:
    jobs = [benchmark_job(name) for name in BENCHMARKS]
    assert all(job.needs_gpu and Path(job.start[1]).is_file() for job in jobs)
    assert [job.name for job in jobs if job.alone] == [
        "verification_cost",
        "throughput",
        "cold_tune",
    ]


def test_no_campaign_starts_from_a_changed_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_all, "gpu_count", lambda: 1)
    monkeypatch.setattr(sys, "argv", ["record_all.py"])
    monkeypatch.setenv("TUNE_COMMIT", "0123456789ab-dirty")
    with pytest.raises(SystemExit, match="0123456789ab-dirty"):
        record_all.main()


def test_no_campaign_starts_without_a_gpu_or_with_an_unknown_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_all, "gpu_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["record_all.py", "rmsnrm"])
    for gpus, said in ((0, "no NVIDIA GPU"), (1, "no job named rmsnrm")):
        monkeypatch.setattr(record_all, "gpu_count", lambda gpus=gpus: gpus)
        with pytest.raises(SystemExit) as ended:
            record_all.main()
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """All jobs end at once, but the recording named `wrong`; the folder for the results."""

    def quick(name: str, *rest: object) -> CampaignJob:
        command = (sys.executable, "-c", f"raise SystemExit({int(name == 'wrong')})")
        return CampaignJob(name=name, kernel="", key="k", start=command, needs_gpu=True)

    monkeypatch.setattr(record_all, "BENCHMARKS", ("energy",))
    monkeypatch.setattr(record_all, "operators", lambda: ["right", "wrong"])
    monkeypatch.setattr(record_all, "benchmark_job", quick)
    monkeypatch.setattr(record_all, "recording_job", quick)
    monkeypatch.setattr(record_all, "gpu_count", lambda: 2)
    monkeypatch.setattr(record_all, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("TUNE_COMMIT", "0123456789ab")
    return tmp_path / "results"


def test_an_interruption_and_a_folder_in_use_are_told_in_one_line(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["record_all.py", "--folder", str(tmp_path / "all")])
    for code, said in ((130, "interrupted; the same command"), (2, "another campaign is running")):
        with locked(tmp_path / "all"), pytest.raises(SystemExit) as ended:
            if code == INTERRUPTED:
                with monkeypatch.context() as patch:
                    patch.setattr(Campaign, "run", interrupted)
                    record_all.main()
            record_all.main()
        assert ended.value.code == code
        assert said in capsys.readouterr().err


def test_a_whole_campaign_writes_its_times_and_a_failure_is_named(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["record_all.py", "--folder", str(tmp_path / "all")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        record_all.main()
    assert ended.value.code == 1
    assert "FAILED: wrong" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*words, "right"])
    record_all.main()
    assert "0 of 1 jobs" in capsys.readouterr().out
    monkeypatch.setattr(record_all, "operators", lambda: ["right"])
    monkeypatch.setattr(sys, "argv", words)
    record_all.main()
    written = json.loads((quick / "record_all.json").read_text())
    assert written["gpus"] == 2
    assert written["runs"] == 3
    assert set(written["seconds"]) == {"right", "energy"}
    assert written["environment"]["commit"] == "0123456789ab"
