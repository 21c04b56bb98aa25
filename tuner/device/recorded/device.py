"""The `recorded` device: answers from measurements made earlier on a GPU, and never guesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.compiler.base import CompileResult
from tuner.device.base import Outcome, Program, Rounds
from tuner.device.recorded.recording import (
    TICK_US,
    RecordedWorkload,
    Recording,
    load_recording,
    peer_key,
)
from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.kernel import Workload
from tuner.model.trial import Status


class RecordedDevice:
    """Answer for the programs of one recording; see `Device` for the contract.

    `recording` is what was read from `path` already: a foreign file (tuner/device/foreign).
    """

    def __init__(
        self,
        path: Path,
        kernel: str,
        operators: Mapping[str, str],
        recording: Recording | None = None,
    ) -> None:
        self._path = path
        self._recording = recording or load_recording(path)
        if self._recording.kernel != kernel:
            raise DeviceError(
                f"is a recording of {self._recording.kernel}, not of {kernel}",
                path=path,
                remedy="`tune devices` lists the recordings and their kernels",
            )
        if self._recording.operators != dict(operators):
            raise DeviceError(
                f"was recorded with {_choices(self._recording.operators)}, "
                f"not with {_choices(operators)}",
                path=path,
                remedy="choose what was recorded, or measure on a GPU with --device cuda",
            )
        self.info = self._recording.device.info()

    @property
    def path(self) -> Path:
        """The file that answers."""
        return self._path

    @property
    def created(self) -> str:
        """When the measurements were made (ISO 8601)."""
        return self._recording.created

    def configs_of(self, workload: Workload) -> Sequence[Config] | None:
        """List the configs that were tried; None where all valid ones were."""
        return self._workload(workload).tried()

    def compiled(self) -> Mapping[str, CompileResult]:
        """Tell what the compiler said of each source, by its key, without machine code."""
        return {key: known.result() for key, known in self._recording.compiled.items()}

    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        thorough: bool = False,
    ) -> Outcome:
        """Look the program up; `not_recorded` where the recording has no answer."""
        workload = self._workload(program.workload)
        if program.peer:
            return self._peer(program.peer, workload)
        found = workload.programs.get(self._key(program, workload))
        if found is None:
            what = "config" if self._by_config else "source, launch and workload"
            return Outcome(
                Status.NOT_RECORDED, f"{self._path.name} has no measurement of this {what}"
            )
        return found.outcome()

    def verify(self, program: Program) -> Outcome:
        """Say that a recording can't: what it holds was verified when it was made, peers too."""
        if program.peer:
            return self._peer(program.peer, self._workload(program.workload))
        return Outcome(Status.NOT_RECORDED, "a recording cannot run a kernel")

    def compare(self, programs: Sequence[Program], *, rounds: int) -> Rounds:
        """Return the recorded rounds if all programs were in them, else separate samples."""
        workload = self._workload(programs[0].workload)
        keys = [self._key(program, workload) for program in programs]
        finals = workload.finals
        if finals is not None and set(keys) <= set(finals.programs):
            columns = [finals.programs.index(key) for key in keys]
            return Rounds(
                tuple(tuple(row[k] * TICK_US for k in columns) for row in finals.rounds[:rounds]),
                paired=True,
                isolated_us=tuple(_microseconds(finals.isolated[k]) for k in columns),
            )
        return self._unpaired(workload, keys)

    def close(self) -> None:
        """Nothing is held open."""

    @property
    def _by_config(self) -> bool:
        return self._recording.keyed_by == "config"

    def _peer(self, name: str, workload: RecordedWorkload) -> Outcome:
        found = workload.peers.get(name)
        if found is None:
            return Outcome(Status.NOT_RECORDED, f"{self._path.name} was recorded without it")
        return found.outcome()

    def _key(self, program: Program, workload: RecordedWorkload) -> str:
        if program.peer:
            return peer_key(program.peer)
        if not self._by_config:
            return program.key
        return workload.baseline if program.config is None else program.config.key

    def _unpaired(self, workload: RecordedWorkload, keys: Sequence[str]) -> Rounds:
        peers = {peer_key(name): peer for name, peer in workload.peers.items()}
        programs = {**workload.programs, **peers}
        samples = [programs[key].ticks for key in keys if key in programs and programs[key].ticks]
        if len(samples) != len(keys):
            raise DeviceError(
                "a finalist has no recorded samples",
                path=self._path,
                remedy="only programs that `run` answered can be compared",
            )
        rows = zip(*samples, strict=False)
        return Rounds(
            tuple(tuple(tick * TICK_US for tick in row) for row in rows),
            paired=False,
            isolated_us=(None,) * len(keys),
        )

    def _workload(self, workload: Workload) -> RecordedWorkload:
        found = self._recording.workloads.get(workload.key)
        if found is None:
            raise DeviceError(
                f"has no measurements for workload {workload.key}",
                path=self._path,
                remedy="recorded workloads: " + " ".join(self._recording.workloads),
            )
        return found


def _choices(operators: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in operators.items()) or "no operator choice"


def _microseconds(ticks: int | None) -> float | None:
    return None if ticks is None else ticks * TICK_US
