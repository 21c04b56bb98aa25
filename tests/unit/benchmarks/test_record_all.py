"""The campaign that renews recordings and results: its jobs, and what it writes at last."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import record_all
from record_all import BENCHMARKS, Part, benchmark_job, operators, recording_job

from tuner.extensions.scale.campaign.jobs import CampaignJob
from tuner.extensions.scale.campaign.ledger import lock_folder
from tuner.extensions.scale.campaign.run import Campaign
from tuner.model.errors import INTERRUPTED


def test_a_recording_has_its_peers_and_its_result_is_of_its_own_session(tmp_path: Path) -> None:
    job = recording_job("rmsnorm", tmp_path, 7, compilers=3, results=tmp_path / "h100")
    session = str(tmp_path / "rmsnorm")
    assert {"record", "--peers", "cuda", "7", session} <= set(job.start)
    assert job.resume[5:] == ("--resume", session, "--jobs", "3")
    ((_, script, *words),) = job.finish
    assert Path(script).name == "summarize_session.py"
    assert words == [session, "--out", str(tmp_path / "h100/rmsnorm.json")]
    assert (job.session, job.needs_gpu, job.alone) == (tmp_path / "rmsnorm", True, False)


def test_a_part_of_an_operator_is_a_job_of_its_own(tmp_path: Path) -> None:
    workloads = ("M=1,N=576,K=7168", "M=16,N=576,K=7168")
    part = Part(workloads, ("deep-gemm",), {"SCALES": "block"})
    job = recording_job("gemm_fp8", tmp_path, 7, 3, tmp_path, part)
    assert {*workloads, "deep-gemm", "SCALES=block", str(tmp_path / "gemm_fp8-block")} <= set(
        job.start
    )
    # Beside the kernel would be that of its first choice.
    assert job.start[-2:] == job.resume[-2:] == ("--out", str(tmp_path / "gemm_fp8-block.json.xz"))
    assert job.finish[0][-1] == str(tmp_path / "gemm_fp8-block.json")
    first = recording_job("gemm_fp8", tmp_path, 7, 3, tmp_path, Part(workloads))
    assert first.name == "gemm_fp8"
    assert "--out" not in first.start
    assert len({job.key, first.key, recording_job("gemm_fp8", tmp_path, 7, 3, tmp_path).key}) == 3


def test_each_operator_and_each_number_of_trials_is_a_recording_of_its_own(tmp_path: Path) -> None:
    first, *others = operators()
    asked = [(first, 7), (first, 7), (first, 8), *((name, 7) for name in others)]
    made = {recording_job(name, tmp_path, trials, 1, tmp_path).key for name, trials in asked}
    assert len(others) == 17
    assert len(made) == 19


def test_benchmarks_run_on_a_gpu_and_the_timing_ones_alone(tmp_path: Path) -> None:
    jobs = [benchmark_job(name, tmp_path) for name in BENCHMARKS]
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


LAYER = ["--workload", "M=1,N=576,K=7168"]


@pytest.mark.parametrize(
    ("words", "gpus", "said"),
    [
        (["rmsnrm"], 0, "no NVIDIA GPU"),
        (["rmsnrm"], 1, "no job named rmsnrm"),
        (LAYER, 1, "are of one operator: name it alone"),
        (["energy", *LAYER], 1, "are of one operator: name it alone"),
        (["gemm_fp8", "--operator", "SCALES=row"], 1, "SCALES cannot be 'row'"),
        (["gemm_fp8", "--workload", "M=1,N=576"], 1, "K"),
    ],
)
def test_what_there_is_not_is_one_error_before_a_campaign_starts(
    words, gpus, said, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(record_all, "gpu_count", lambda: gpus)
    monkeypatch.setattr(record_all, "gpu_name", lambda _: "NVIDIA H100 80GB HBM3")
    monkeypatch.setenv("TUNE_COMMIT", "0123456789ab")
    monkeypatch.setattr(sys, "argv", ["record_all.py", "--folder", str(tmp_path / "all"), *words])
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
    monkeypatch.setattr(record_all, "gpu_name", lambda _: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(record_all, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("TUNE_COMMIT", "0123456789ab")
    return tmp_path / "results/h100-80gb-hbm3"


def test_an_interruption_and_a_folder_in_use_are_told_in_one_line(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["record_all.py", "--folder", str(tmp_path / "all")])
    for code, said in ((130, "interrupted; the same command"), (2, "another campaign is running")):
        with lock_folder(tmp_path / "all"), pytest.raises(SystemExit) as ended:
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
