"""Without a GPU, every operator with a recording is tuned to within 1 % of the best recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from slow import mostly_slow

from tuner.cli import cli
from tuner.device.recorded.recording import load_recording
from tuner.model.trial import INITIAL, Status
from tuner.session.session import Session

ROOT = Path(__file__).parents[2]
RECORDINGS = sorted((ROOT / "kernels/sglang/recordings").glob("*/*.json.xz"))
SHARE = 0.99
NAMES = [path.name.split(".")[0] for path in RECORDINGS]
# With choices of the operator, and in Python.
SAMPLE = ("topk_softmax", "fused_moe")
QUICK, SAMPLED = (
    [path for path, name in zip(RECORDINGS, NAMES, strict=True) if name in chosen]
    for chosen in (("moe_sum_reduce",), SAMPLE)
)


@pytest.mark.parametrize("path", mostly_slow(RECORDINGS, QUICK, SAMPLED), ids=NAMES)
def test_the_search_reaches_the_recorded_best(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"kernels/sglang/{path.name.split('.')[0]}"
    monkeypatch.chdir(ROOT)
    kernel = name + next(suffix for suffix in (".cu", ".py") if Path(name + suffix).exists())
    options = ["--device", f"recorded:{path}", "--session", str(tmp_path / "s"), "--quiet"]
    command = [kernel, *options, "--json"]
    done = CliRunner().invoke(cli, command, prog_name="tune")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["trials"]["not_recorded"] == 0
    recording = load_recording(path)
    with Session.open(tmp_path / "s", read_only=True) as session:
        for workload in session.manifest.config.workloads:
            if workload.held_out:
                continue
            known = recording.workloads[workload.key]
            times_us = [
                program.outcome().measurement.median_us  # type: ignore[union-attr]
                for key, program in known.programs.items()
                if key != known.baseline and program.status is Status.CORRECT
            ]
            found_us = [trial.time_us for trial in session.trials(INITIAL, workload)]
            best_us = min(time for time in found_us if time is not None)
            assert min(times_us) >= SHARE * best_us, f"{workload}: {best_us} us"
