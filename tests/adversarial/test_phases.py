"""No kernel can tell a call that is judged from one that is timed, whatever it looks at.

A kernel notes all it can observe in every call. Whatever timed calls show, judged calls show too,
and not much more seldom: one that cheats where it takes a call for a timed one is judged there.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_trial import Build
from operators import EXACT, HISTOGRAM, Operator, array, axes, launch

from tuner.device.base import Program
from tuner.device.timing import Stretch
from tuner.device.verify import verified_device
from tuner.device.verify.shared_memory import SharedMemory
from tuner.device.verify.verified_device import VerifiedDevice
from tuner.device.verify.verifier import Verifier
from tuner.extensions.cpu.device import HostDevice, HostRunner, host_info
from tuner.extensions.cpu.worker import HostWorker
from tuner.model.kernel import Workload
from tuner.model.trial import Correctness, Status

KERNELS = Path(__file__).parent / "kernels"
CALLS, SEEN = 8192, 16
PROBE = Operator(
    "probe",
    (
        array("y", "float32", "T", "output"),
        array("notes", "uint32", f"{CALLS} {SEEN}", "output", deterministic=False),
        array("scratch", "float32", "T", "scratch"),
        array("x", "float32", "T"),
        *axes("T"),
    ),
    EXACT,
    Workload.of({"T": 1000}),
    (launch(1, 32, kernel="look", shared_bytes=256), launch(4, 32)),
)
# What a kernel sees, and into how many parts of equal size its values are cut at most.
OBSERVED = {
    "first word of an output": 5,
    "last word of an output": 5,
    "scratch": 5,
    "words of another output": 5,
    "what lies behind an input": 2,  # which is drawn for a phase, not for each call
    "what lies behind an output": 2,
    "dynamic shared memory": 5,
    "static shared memory": 5,
    "address of an output": 5,
    "addresses of an input and the scratch": 5,
    "size": 5,
    "whether the inputs have changed": 5,
    "number of calls so far": 2,
    "time since the call before": 2,
    "block that runs first": 5,
    "block that runs second": 5,
}
RUNS, ROUNDS = 14, 15
# Of the share that a part of all values has in timed calls, so much it has in judged ones.
LEAST = 1 / 3


class Notes:
    """A verifier that lets all pass and reads what the kernel noted; implements what `Child` does.

    `judged` has the number of the call that each verdict is of: the last that was noted by then.
    """

    def __init__(self) -> None:
        self.verifier = Verifier(SharedMemory(), PROBE.spec, {})
        self.made = 0
        self.judged: list[int] = []
        self.history = np.zeros((CALLS, SEEN), np.uint32)

    def call(self, method: str, *arguments: Any, timeout_s: float = 0.0) -> Any:
        if method.startswith("check"):
            self._read()
            passed = Correctness(True, ("normal",))
            if method != "check_then_prepare":
                return passed
            return passed, self.verifier.prepare(*arguments, cached=True)
        if method == "require_telling":
            return None
        return getattr(self.verifier, method)(*arguments)

    def send(self, method: str) -> None:
        self.call(method)

    def receive(self, timeout_s: float) -> None:
        pass

    def kill(self) -> None:
        pass

    def _read(self) -> None:
        slot = next(one for one in self.verifier._layout.slots if one.name == "notes")
        history = self.verifier._view(slot)
        calls = int((history[:, 10] != 0).sum())
        self.judged.append(calls - 1)
        if calls > int((self.history[:, 10] != 0).sum()):
            self.history = history.copy()


class CountingWorker(HostWorker):
    """Note for each call whether its time counts."""

    def __init__(self, timed: list[bool]) -> None:
        super().__init__(5.0)
        self.timed, self.counts = timed, False

    def run(self, program: Program, order: int, fill: int, variant: int = 0) -> tuple[float, int]:
        self.timed.append(self.counts)
        return super().run(program, order, fill, variant)


class CountingRunner(HostRunner):
    """Run programs in a `CountingWorker`."""

    def __init__(self) -> None:
        self.timed: list[bool] = []
        super().__init__(5.0, deterministic=PROBE.spec.deterministic)

    def _start(self) -> HostWorker:
        return CountingWorker(self.timed)

    def time(self, *arguments: Any) -> Any:
        return self._counting(super().time, *arguments)

    def compare(self, *arguments: Any) -> Any:
        return self._counting(super().compare, *arguments)

    def _counting(self, method: Any, *arguments: Any) -> Any:
        worker = self._ready_worker()
        assert isinstance(worker, CountingWorker)
        worker.counts = True
        try:
            return method(*arguments)
        finally:
            worker.counts = False


@pytest.fixture(scope="module")
def seen(build: Build) -> tuple[np.ndarray, np.ndarray]:
    """Rows of what was seen in timed calls, and in judged ones."""
    source = (KERNELS / "probe.cu").read_text()
    program = build(source, PROBE.workload, PROBE.launches, ())
    notes, runner = Notes(), CountingRunner()
    info = host_info(())
    with closing(VerifiedDevice(info, PROBE.spec, notes, runner)) as device:  # type: ignore[arg-type]
        for _ in range(RUNS):
            outcome = device.run(program, full_verification=True)
            assert outcome.status is Status.CORRECT, outcome.reason
            assert device.compare([program, program], rounds=ROUNDS).faults == ("", "")
    noted = int((notes.history[:, 10] != 0).sum())
    # Which of the last ones are judged, and so read, is drawn.
    assert len(runner.timed) - 2 * ROUNDS <= noted <= CALLS
    return notes.history[np.flatnonzero(runner.timed[:noted])], notes.history[notes.judged]


@pytest.mark.parametrize("observed", range(SEEN), ids=list(OBSERVED))
def test_what_timed_calls_show_judged_calls_show_too(
    seen: tuple[np.ndarray, np.ndarray], observed: int
) -> None:
    timed, judged = (rows[:, observed] for rows in seen)
    assert len(timed) > 300
    assert len(judged) > 150
    assert not _hidden(timed, judged, list(OBSERVED.values())[observed])


def test_a_key_would_be_found() -> None:
    random = np.random.default_rng(1)
    same, other = random.integers(0, 100, 1000), random.integers(0, 100, 200)
    assert not _hidden(same, other, 5)
    assert _hidden(same, other // 2, 5)
    often = np.where(random.random(1000) < 0.3, 7, same)
    assert _hidden(often, np.where(other == 7, 8, other), 5)


def _hidden(timed: np.ndarray, judged: np.ndarray, parts: int) -> list[str]:
    """List the common values and the parts of timed calls that judged calls have too seldom."""
    edges = np.unique(np.quantile(timed, np.arange(parts + 1) / parts, method="lower"))
    bounds = list(zip(edges, [*edges[1:], np.inf], strict=True))
    # A single value may be the key as well.
    bounds += [(value, value + 1) for value in np.unique(timed).astype(np.int64)]
    found = []
    for low, high in bounds:
        shares = [float(((low <= some) & (some < high)).mean()) for some in (timed, judged)]
        if shares[0] >= 0.5 / parts and shares[1] < LEAST * shares[0]:
            found.append(f"{low} to {high}: {shares[0]:.0%} of timed calls, {shares[1]:.0%} judged")
    return found


def test_what_is_kept_in_the_last_rounds_of_a_comparison_shows_after_them(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One stretch, so that no other one has other inputs.
    monkeypatch.setattr(verified_device, "stretches_of", lambda rounds: [Stretch(rounds)])
    keeps = (KERNELS / "keeps.cu").read_text()
    counts = keeps.replace("calls >= 12", "false")
    sources = (counts, keeps, f"{counts}// another")
    one = (launch(1, 64),)
    programs = [build(source, HISTOGRAM.workload, one, ()) for source in sources]
    with closing(HostDevice(HISTOGRAM.spec, {})) as device:
        right, wrong, other = device.compare(programs, rounds=20).faults
    assert (right, other) == ("", "")
    assert "expected" in wrong


def test_what_is_kept_between_rounds_shows_where_each_row_has_inputs_of_its_own(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified_device.VerifiedDevice, "_draws_each_row", True)
    keeps = (KERNELS / "keeps.cu").read_text()
    counts, early = keeps.replace("calls >= 12", "false"), keeps.replace("12", "2")
    one = (launch(1, 64),)
    programs = [build(source, HISTOGRAM.workload, one, ()) for source in (counts, early)]
    with closing(HostDevice(HISTOGRAM.spec, {})) as device:
        compared = device.compare(programs, rounds=96)
        ranked = device.rank(programs, rounds=48)
    assert len(compared.times_us) == len(ranked) == 48
    right, wrong = compared.faults
    assert right == ""
    assert "expected" in wrong
    assert all(first is not None and second is None for first, second in ranked)
