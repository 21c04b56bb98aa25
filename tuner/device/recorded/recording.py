"""Measurements made on a GPU, in one compressed file, and the device that answers from it."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tuner import plugins
from tuner.compiler.base import CompileResult
from tuner.device.base import ComparisonRounds, Device, DeviceInfo, Outcome, Program
from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.hardware import AmdLimits, DeviceLimits
from tuner.model.kernel import Dim3, KernelSpec, Launch, Workload
from tuner.model.languages import CUDA, PYTHON, language_of
from tuner.model.surroundings import Surroundings
from tuner.model.trial import Correctness, Measurement, Resources, Status
from tuner.process.files import atomic_write, parse_json, read_regular

VERSION = 2
# A hundred times what the recording of a search of 10,000 configs takes.
MAX_BYTES = 256 << 20
SUFFIX = ".json.xz"
_XZ = b"\xfd7zXZ\0"
# Times are kept as whole multiples of this: 0.1 ns, far below the noise of any measurement.
TICK_US = 1e-4


Ticks = Annotated[int, Field(gt=0)]


class Kept(BaseModel):
    """A part of our own files, closed to keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RecordedProgram(Kept):
    """What the GPU said of one program; `bits` as in `Correctness`, which older ones lack."""

    status: Status
    reason: str = ""
    ticks: tuple[Ticks, ...] = ()
    calls: int = 0
    sets: int = 0
    stopped_early: bool = False
    bits: str = ""

    def outcome(self) -> Outcome:
        times = tuple(tick * TICK_US for tick in self.ticks)
        measurement = Measurement(times, self.calls, self.sets, self.stopped_early)
        verdict = Correctness(True, bits=self.bits) if self.bits else None
        return Outcome(self.status, self.reason, measurement if times else None, verdict)


class RecordedFinals(Kept):
    """Interleaved rounds of the baseline (first), the best programs of one workload, and peers.

    `programs` names the columns: keys of programs, and `peer_key` of each peer. `alone` are the
    times without neighbours, where the rounds hold costs between them, and `raced` is what a race
    before the rounds said of each program, where it ran in one.
    """

    programs: tuple[str, ...]
    rounds: tuple[tuple[Ticks, ...], ...] = Field(min_length=1)
    isolated: tuple[Ticks | None, ...]
    alone: tuple[Ticks, ...] = ()
    raced: tuple[Ticks | None, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        count = len(self.programs)
        rows = (*self.rounds, self.isolated, *filter(None, (self.alone, self.raced)))
        if min(map(len, rows)) < count:
            raise ValueError(f"there is not a time for each of its {count} programs")
        return self


class RecordedWorkload(Kept):
    """All that was measured for one workload, by program key; `peers` by their own names.

    `configs` holds the `Config.key` of every config that was tried, what never ran included; it
    is None in older recordings, for which all valid ones were. `surroundings` is what the times
    were measured in (`Surroundings.content`), "" for alone.
    """

    baseline: str
    programs: dict[str, RecordedProgram]
    finals: RecordedFinals | None = None
    configs: tuple[str, ...] | None = None
    peers: dict[str, RecordedProgram] = Field(default_factory=dict)
    surroundings: str = ""

    def list_tried(self) -> list[Config] | None:
        configs = self.configs
        return None if configs is None else [Config.of(json.loads(text)) for text in configs]


_Used = tuple[int | None, int, int, int, int, int]
_UsedAndSerialized = tuple[int | None, int, int, int, int, int, str]
_UsedByAll = tuple[int | None, int, int, int, int, int, str, int, int, int | None]


class RecordedCompilation(Kept):
    """What the compiler said of one source: an error, or what each of its kernels uses.

    `resources` has the fields of `Resources`, in their order; older ones lack the last ones.
    `called` has the launches of a Python kernel, each as its name, grid and block.
    """

    error: str = ""
    timed_out: bool = False
    resources: dict[str, _Used | _UsedAndSerialized | _UsedByAll] = Field(default_factory=dict)
    called: tuple[tuple[str, Dim3, Dim3], ...] = ()

    @classmethod
    def of(cls, result: CompileResult) -> RecordedCompilation:
        resources = {name: astuple(used) for name, used in result.resources.items()}
        called = tuple((launch.kernel, launch.grid, launch.block) for launch in result.called)
        return cls(
            error=result.error, timed_out=result.timed_out, resources=resources, called=called
        )

    def result(self) -> CompileResult:
        resources = {name: Resources(*numbers) for name, numbers in self.resources.items()}
        called = tuple(Launch(*launch) for launch in self.called)
        return CompileResult(
            error=self.error, timed_out=self.timed_out, resources=resources, called=called
        )


class RecordedDeviceInfo(Kept):
    """The GPU that was measured."""

    name: str
    architecture: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    streaming_gbps: float
    environment: dict[str, str]
    own_limits: AmdLimits | DeviceLimits | None = None

    def info(self) -> DeviceInfo:
        return DeviceInfo(**dict(self), recorded=True)


class Recording(Kept):
    """One kernel's recording: the GPU, when, with which operator choices, and every workload.

    Its programs are keyed by `Program.key`, or, where other programs measured and only told the
    config, by `Config.key`. `compiled` has what the compiler said, by `source_key`. The bits of its
    programs are those of rows, with `invariant`.
    """

    version: int = VERSION
    kernel: str
    created: str
    device: RecordedDeviceInfo
    operators: dict[str, str] = Field(default_factory=dict)
    workloads: dict[str, RecordedWorkload]
    keyed_by: Literal["program", "config"] = "program"
    invariant: bool | None = None  # older ones do not say
    compiled: dict[str, RecordedCompilation] = Field(default_factory=dict)


def peer_key(name: str) -> str:
    return f"peer:{name}"


def load_recording(path: Path) -> Recording:
    """Read a recording; raise `DeviceError` where the file is missing, damaged or newer."""
    try:
        content: Any = parse_json(_unpack_file(path).decode())
    except FileNotFoundError as error:
        raise DeviceError(
            "there is no such recording", path=path, remedy="`tune devices` lists those there are"
        ) from error
    except (OSError, lzma.LZMAError, RecursionError, ValueError) as error:
        raise DeviceError(
            f"is not a recording: {error}",
            path=path,
            remedy="recordings are xz-compressed JSON files made by `tune record`, or Kernel "
            "Tuner's caches and T4 results (.json or .json.gz)",
        ) from error
    version = content.get("version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise DeviceError(
            f"is of version {version}; this program reads up to {VERSION}",
            path=path,
            remedy="update kernel-tune",
        )
    try:
        return Recording.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DeviceError(
            f"is damaged at {place}: {first['msg']}",
            path=path,
            remedy="get it again, or make a new one on a GPU with `tune record`",
        ) from error


def _unpack_file(path: Path) -> bytes:
    # xz packs 1 MB of zeros into 150 bytes: a stranger's file could fill the memory.
    packed = read_regular(path, MAX_BYTES)
    if not packed or not packed.startswith(_XZ[: len(packed)]):
        raise ValueError("it is not compressed with xz" if packed else "it is empty")
    unpacker = lzma.LZMADecompressor(memlimit=MAX_BYTES)
    content = unpacker.decompress(packed, MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"over {MAX_BYTES} bytes when unpacked")
    if not unpacker.eof:
        raise ValueError("the file is cut short")
    return content


def save_recording(recording: Recording, path: Path) -> None:
    """Write a recording in one step, so that a reader never sees half of it."""
    content = recording.model_dump_json(exclude_defaults=True)
    with_version = json.dumps({"version": VERSION, **json.loads(content)}, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lzma.compress(with_version.encode(), preset=9))


def recordings_of(source: Path) -> list[Path]:
    """List the recordings beside a kernel: `recordings/<gpu>/<kernel>.json.xz`."""
    return sorted(source.parent.glob(f"recordings/*/{recording_name(source)}"))


def recording_name(source: Path) -> str:
    """Name a kernel's recording; another language's form of it lies in the same folder."""
    in_cuda = language_of(source) in (CUDA, PYTHON)
    return (source.stem if in_cuda else source.name) + SUFFIX


@runtime_checkable
class ForeignFiles(Protocol):
    """Measurements of other tuners, which an extension reads as a recording."""

    def is_foreign(self, path: Path) -> bool:
        """Tell by its first bytes whether a file is one of them."""

    def read(
        self,
        path: Path,
        spec: KernelSpec,
        operators: Mapping[str, str],
        workloads: Sequence[Workload] | None,
    ) -> Recording:
        """Read it; raise `DeviceError` where it does not fit the kernel."""


def read_foreign(
    path: Path,
    spec: KernelSpec,
    operators: Mapping[str, str],
    workloads: Sequence[Workload] | None,
) -> Recording | None:
    """Read a file of another tuner; None for one of our own."""
    for name in plugins.names_of(plugins.RECORDINGS):
        files: ForeignFiles = plugins.load(plugins.RECORDINGS, name, ForeignFiles)
        if files.is_foreign(path):
            return files.read(path, spec, operators, workloads)
    return None


class RecordedDevice(Device):
    """Answer for the programs of one recording.

    `recording` is what was read from `path` already: a foreign file. `surroundings` tells what a
    workload's times are wanted in.
    """

    capabilities = frozenset({"recording"})

    def __init__(
        self,
        path: Path,
        kernel: str,
        operators: Mapping[str, str],
        recording: Recording | None = None,
        surroundings: Callable[[Workload], Surroundings | None] = lambda workload: None,
    ) -> None:
        self.path, self._surroundings = path, surroundings
        # Those that were found to be measured as they are asked for.
        self._usable: dict[Workload, RecordedWorkload] = {}
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
        self.created = self._recording.created
        self._by_config = self._recording.keyed_by == "config"

    @property
    def recording(self) -> Self:
        return self

    @property
    def has_bits_of_rows(self) -> bool | None:
        return self._recording.invariant

    def holds(self, workload: Workload) -> bool:
        return workload.key in self._recording.workloads

    def configs_of(self, workload: Workload) -> Sequence[Config] | None:
        return self._workload(workload).list_tried()

    def compiled(self) -> Mapping[str, CompileResult]:
        return {key: compilation.result() for key, compilation in self._recording.compiled.items()}

    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        full_verification: bool = False,
    ) -> Outcome:
        """Look the program up; `not_recorded` where the recording has no answer."""
        workload = self._workload(program.workload)
        if program.peer:
            return self.verify(program)
        if recorded_program := workload.programs.get(self._key(program, workload)):
            return recorded_program.outcome()
        what = "config" if self._by_config else "source, launch and workload"
        reason = f"{self.path.name} has no measurement of this {what}"
        return Outcome(Status.NOT_RECORDED, reason)

    def verify(self, program: Program) -> Outcome:
        """Say that a recording can't: what it holds was verified when it was made, peers too."""
        if not program.peer:
            return Outcome(Status.NOT_RECORDED, "a recording cannot run a kernel")
        if recorded_program := self._workload(program.workload).peers.get(program.peer):
            return recorded_program.outcome()
        return Outcome(Status.NOT_RECORDED, f"{self.path.name} was recorded without it")

    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        """Return the recorded rounds if all programs were in them, else separate samples."""
        workload = self._workload(programs[0].workload)
        keys = [self._key(program, workload) for program in programs]
        finals = workload.finals
        if finals is not None and set(keys) <= set(finals.programs):
            columns = [finals.programs.index(key) for key in keys]
            rows = [tuple(row[k] * TICK_US for k in columns) for row in finals.rounds[:rounds]]
            alone_us = tuple(finals.alone[k] * TICK_US for k in columns if finals.alone)
            return ComparisonRounds(
                tuple(rows),
                paired=True,
                isolated_us=_in_us(finals.isolated[k] for k in columns),
                alone_us=alone_us,
                raced_us=_in_us(finals.raced[k] for k in columns if finals.raced),
            )
        by_key = workload.programs | {peer_key(n): peer for n, peer in workload.peers.items()}
        samples = [by_key[key].ticks for key in keys if key in by_key and by_key[key].ticks]
        if len(samples) != len(keys):
            raise DeviceError(
                "a finalist has no recorded samples",
                path=self.path,
                remedy="only programs that `run` answered can be compared",
            )
        rows = [tuple(tick * TICK_US for tick in row) for row in zip(*samples, strict=False)]
        return ComparisonRounds(tuple(rows), paired=False, isolated_us=(None,) * len(keys))

    def close(self) -> None:
        """Nothing is held open."""

    def _key(self, program: Program, workload: RecordedWorkload) -> str:
        if program.peer:
            return peer_key(program.peer)
        if not self._by_config:
            return program.key
        return workload.baseline if program.config is None else program.config.key

    def _workload(self, workload: Workload) -> RecordedWorkload:
        if workload in self._usable:
            return self._usable[workload]
        recorded = self._recording.workloads.get(workload.key)
        if recorded is None:
            raise DeviceError(
                f"has no measurements for workload {workload.key}",
                path=self.path,
                remedy="recorded workloads: " + " ".join(self._recording.workloads),
            )
        wanted = self._surroundings(workload)
        if recorded.surroundings != (wanted.content if wanted else ""):
            was = recorded.surroundings.partition(":")[0]
            ask = "leave --surroundings out" if was else "ask for --surroundings alone"
            raise DeviceError(
                f"was measured {f'between other neighbours ({was})' if was else 'alone'} on "
                f"{workload.key}, not {f'between those of {wanted.name}' if wanted else 'alone'}",
                path=self.path,
                remedy=f"{ask} for what it holds, or use a GPU; where the space has changed since, "
                "`tune record` makes a new one",
            )
        self._usable[workload] = recorded
        return recorded


def _in_us(ticks: Iterable[int | None]) -> tuple[float | None, ...]:
    return tuple(None if tick is None else tick * TICK_US for tick in ticks)


def _choices(operators: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in operators.items()) or "no operator choice"
