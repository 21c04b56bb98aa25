"""A small project of one kernel with a recording made up for it, and `tune` as a process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

import faults
import pytest
import recordings
from click.testing import CliRunner, Result

from tuner.app.check import UnavailableDevice, target_info
from tuner.cli import cli
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.device.recorded.recording import (
    RecordedFinals,
    RecordedProgram,
    RecordedWorkload,
    save_recording,
)
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

SCALE = Path(__file__).parent / "data/scale"
TICKS_PER_US = 10_000
RECORDING = "kernels/recordings/nvidia-h200/scale.json.xz"


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with one kernel to tune."""

    root: Path

    @property
    def kernel(self) -> Path:
        return self.root / "kernels/scale.cu"

    @property
    def space(self) -> Path:
        return self.root / "search_spaces/scale.yaml"

    @property
    def template(self) -> Path:
        return self.root / "templates/scale.cu.j2"

    def edit(self, path: Path, old: str, new: str) -> None:
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Compile every config, as a recording is keyed by source, and make the times up."""
    project = Project(copytree(SCALE, tmp_path_factory.mktemp("recorded") / "project"))
    definition = load_definition(project.space)
    spec, target = definition.spec, target_info("sm_90a")
    candidate = Candidate("any", definition.space, Template.load(spec.template, spec.include_dirs))
    compiler = NvrtcPool(cache=Cache())
    evaluator = Evaluator(spec, candidate, {}, compiler, UnavailableDevice(target))
    recorded = {}
    for workload in spec.workloads:
        baseline = evaluator.baseline_program(workload).key
        programs = {baseline: measured(20.0)}
        best: dict[float, str] = {}
        for config in valid_configs(definition.space, evaluator.names(workload)):
            time_us, key = time_of(config, workload), evaluator.program(workload, config).key
            programs[key] = measured(time_us)
            best[time_us] = key
        finals = finals_of(baseline, best)
        recorded[workload.key] = RecordedWorkload(
            baseline=baseline, programs=programs, finals=finals
        )
    compiler.close()
    path = project.root / "scale.json.xz"
    save_recording(recordings.recording("scale", workloads=recorded), path)
    return path.read_bytes()


@pytest.fixture
def project(tmp_path: Path, recording: bytes) -> Project:
    """A fresh copy of the project, with its recording."""
    project = Project(copytree(SCALE, tmp_path / "project"))
    path = project.root / RECORDING
    path.parent.mkdir(parents=True)
    path.write_bytes(recording)
    return project


@pytest.fixture
def start(project: Project) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `tune` as a process of its own, in the project's folder."""
    started: list[subprocess.Popen[str]] = []

    def run(*words: object, program: Sequence[str] = ("-m", "tuner")) -> subprocess.Popen[str]:
        process = faults.started(*words, folder=project.root, program=program)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def tune(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run `tune` to its end in the project's folder, in this process, which is faster."""
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*words: object) -> Result:
        return CliRunner().invoke(cli, [str(word) for word in words], prog_name="tune")

    return run


def time_of(config: Config, workload: Workload) -> float:
    """Best at 128 threads and 4 elements for the large workload, at 64 and 1 for the small."""
    wanted = (128, 4) if workload.values["N"] > 50_000 else (64, 1)
    found = (int(config["block_size"]), int(config["per_thread"]))
    return 10.0 + sum(abs(a - b) / b for a, b in zip(found, wanted, strict=True))


def measured(time_us: float) -> RecordedProgram:
    ticks = tuple(round(time_us * TICKS_PER_US) + wobble for wobble in range(-10, 11))
    return RecordedProgram(status=Status.CORRECT, ticks=ticks, calls=20, sets=8)


def finals_of(baseline: str, keys: dict[float, str]) -> RecordedFinals:
    times = [20.0, *sorted(keys)]
    rounds = tuple(
        tuple(round(time * TICKS_PER_US) + wobble * 3 for time in times) for wobble in range(40)
    )
    programs = (baseline, *(keys[time] for time in times[1:]))
    return RecordedFinals(programs=programs, rounds=rounds, isolated=(None,) * len(times))
