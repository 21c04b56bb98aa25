"""A few broken versions at once, on a device that says what a test wants of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.device.base import Device, DeviceInfo, Outcome, Program
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.study.mutation import at_once
from tuner.extensions.study.mutation.at_once import measure_strength
from tuner.model.errors import WorkerError
from tuner.model.trial import Status
from tuner.report.mutation_score import FILE, MutationScore, load_score
from tuner.space.load import load_definition

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
INFO = DeviceInfo("host CPU", "sm_90a", (9, 0), 2, 1 << 20, 10.0, recorded=False, on_cpu=True)
CORRECT, WRONG = Outcome(Status.CORRECT), Outcome(Status.INCORRECT, "wrong")


class Saying(Device):
    """Pass the unchanged kernel, and say of every other program what `verdict` returns."""

    def __init__(self, verdict: Callable[[], Outcome]) -> None:
        self.info, self._verdict, self._unchanged = INFO, verdict, b""
        self.limits: list[float] = []

    def verify(self, program: Program) -> Outcome:
        self._unchanged = self._unchanged or program.cubin
        return CORRECT if program.cubin == self._unchanged else self._verdict()

    @contextmanager
    def limiting_runs(self, seconds: float) -> Iterator[None]:
        self.limits.append(seconds)
        yield
        self.limits.append(0.0)

    def run(self, program, **options):
        raise NotImplementedError

    def compare(self, programs, *, rounds):
        raise NotImplementedError

    def close(self) -> None:
        return None


@pytest.fixture
def measure(folder: Path, host_compiler: HostCompiler, tmp_path, monkeypatch):
    """Measure a run's strength, in a session of its own each time; give its score and its notes."""
    monkeypatch.setattr(at_once, "user_cache_dir", lambda: tmp_path / "cache")
    numbers = iter(range(10))

    def run(device: Saying) -> tuple[MutationScore | None, list[str]]:
        definition = load_definition(folder / "row_sums.yaml")
        spec, notes = definition.spec, []
        session = tmp_path / f"session-{next(numbers)}"
        session.mkdir()
        config = SimpleNamespace(operators={}, workloads=spec.workloads)
        given = SimpleNamespace(
            plan=SimpleNamespace(spec=spec, space=definition.space, config=config),
            session=SimpleNamespace(directory=session, results=lambda: [1]),
            candidates=SimpleNamespace(compiler=host_compiler),
            device=device,
            verification=SimpleNamespace(watches=(), edge_cases=spec.edge_cases, near=()),
            tracker=SimpleNamespace(announce=lambda phase, note="": notes.append(note)),
        )
        measure_strength(given)
        return load_score(session), [note for note in notes if note]

    return run


def test_sixteen_are_counted_and_each_run_is_limited(measure) -> None:
    device = Saying(lambda: WRONG)
    score, _ = measure(device)
    assert (score.killed, score.survived, score.ways) == (16, 0, 16)
    assert score.caught_text == "catches 16 of 16 broken versions"
    assert device.limits == [2.0, 0.0]


def test_the_answer_is_kept_for_runs_with_the_same_files_alone(measure, folder: Path) -> None:
    first, _ = measure(Saying(lambda: WRONG))
    assert measure(Saying(lambda: CORRECT))[0] == first
    reference = folder / "row_sums.py"
    reference.write_text(f"{reference.read_text()}# changed\n")
    again, _ = measure(Saying(lambda: CORRECT))
    assert (again.killed, again.survived) == (0, 16)
    assert len(set(again.places)) == 16
    assert all(place.startswith("row_sums.cu:") for place in again.places)


def test_the_time_ends_it_with_what_is_known_and_how_many_are_left(measure, monkeypatch) -> None:
    monkeypatch.setattr(at_once, "HOST_S", 3.0)
    monkeypatch.setattr(at_once, "SAY_EVERY_S", 0.5)

    def slowly() -> Outcome:
        time.sleep(1.0)
        return WRONG

    score, notes = measure(Saying(slowly))
    assert 1 <= score.killed < 16
    left = 16 - score.killed
    assert score.caught_text.endswith(f"versions (there was no time for {left} more)")
    assert f"{score.killed} of {score.killed} broken versions are caught so far" in notes


def test_a_device_that_fails_costs_the_answer_and_not_the_run(measure, tmp_path: Path) -> None:
    def fail() -> Outcome:
        raise WorkerError("the verifier ended")

    score, notes = measure(Saying(fail))
    assert score is None
    assert notes == ["broken versions of the baseline could not be tried: the verifier ended"]
    assert not list(tmp_path.glob(f"cache/**/{FILE}"))


def test_a_kernel_that_takes_long_to_verify_is_left_to_the_command(measure, monkeypatch) -> None:
    monkeypatch.setattr(at_once, "HOST_S", 0.0)
    score, notes = measure(Saying(lambda: WRONG))
    assert score is None
    assert notes == ["verifying the unchanged kernel takes too long to break it: try `tune mutate`"]
