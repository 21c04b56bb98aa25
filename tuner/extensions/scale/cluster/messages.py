"""The messages between coordinator and workers: offers, requests and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from operator import methodcaller
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import to_json

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.device.base import ComparisonRounds, Counters, Device, DeviceInfo, Outcome, Watcher
from tuner.model import TUNER_VERSION
from tuner.model.errors import (
    DeviceError,
    DeviceLost,
    ExpressionError,
    InputError,
    KernelError,
    OutOfMemory,
    SpaceError,
    TemplateError,
    TunerError,
    Unmeasured,
    WorkerError,
)
from tuner.model.kernel import KernelSpec

_T = TypeVar("_T")

# What Dask calls the part of a worker's registration that is ours, and calls to it.
TOPIC = "tune"
# Which of a worker's threads do the work: one for its device, one for each compilation, and some
# for what takes no time, or must not wait for these.
Pool = Literal["device", "compile", "other"]

# What the CPU of a host is called where GPUs have the driver's names.
CPU_MODEL = "host CPU"

# What reaches a terminal comes from another host.
Word = Annotated[str, StringConstraints(pattern=r"^[ -~]{0,200}$", strict=True)]


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One GPU of a host, or its CPU, as the process that owns it announces it.

    `slot` is drawn anew by every process. `model` is the GPU's name.
    """

    slot: Word
    name: Word
    host: Word
    device: Word
    model: Word
    version: Word
    cuda: Word
    compilers: Annotated[int, Field(strict=True, ge=1)]

    @property
    def on_cpu(self) -> bool:
        return self.device == "host"

    def __str__(self) -> str:
        return f"{self.name} ({self.model})"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_info(announced: object) -> SlotInfo | None:
    """Read what a worker announces; None for a worker that is not ours."""
    try:
        info: SlotInfo = _adapter(SlotInfo).validate_python(announced)
    except ValidationError:
        return None
    return info


def read_members(identity: Any) -> list[tuple[str, SlotInfo, float]]:
    """List the workers of ours that a scheduler tells of: address, slot, when it heard of them.

    Raises `ValueError` for what no scheduler says.
    """
    if not isinstance(identity, dict):
        raise ValueError("it is no scheduler")
    workers = _adapter(dict[str, dict[str, Any]]).validate_python(identity.get("workers"))
    return [
        (address, info, _adapter(float).validate_python(worker.get("last_seen")))
        for address, worker in workers.items()
        if (info := read_info(worker.get(TOPIC))) is not None
    ]


@cache
def code_version() -> str:
    """Name this version and the content of its files: pickles and judges of both sides agree."""
    package = Path(__file__).resolve().parents[3]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and path.suffix not in (".pyc", ".so") and path.name[0] != ".":
            digest.update(path.relative_to(package).as_posix().encode())
            digest.update(path.read_bytes())
    return f"{TUNER_VERSION} ({digest.hexdigest()[:10]})"


@cache
def cuda_version() -> str:
    """Name the CUDA compiler that is installed: its machine code is what is compared."""
    try:
        return version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        return "none"


# Files by the name that they have in a folder, with the SHA-256 of what they hold.
Manifest = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class OpenKernel:
    """Take the slot and open a kernel on its device.

    The answer is a `DeviceInfo`, or None where another run holds the slot. The paths of `spec` are
    names in the folder that the worker makes of `files`.
    """

    spec: KernelSpec
    operators: Mapping[str, str]
    files: Manifest


# Parts of a device: what watches is asked for once, and then named by its kind.
WATCHERS, COUNTERS = "watchers", "counters"


@dataclass(frozen=True, slots=True)
class CallDevice:
    """Call a method of the device, or of one of its parts: a watching tool's kind, `counters`.

    Of `watchers` the answer is a `ToldWatchers`.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""


@dataclass(frozen=True, slots=True)
class ToldWatchers:
    """What a worker's device has of watching tools; `Watchers` says what the fields mean."""

    kinds: tuple[str, ...]
    compile_options: tuple[str, ...]
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class Compile:
    """Compile; include folders are the names of folders among `files`."""

    request: CompileRequest
    files: Manifest
    on_cpu: bool


@dataclass(frozen=True, slots=True)
class NameCompiler:
    """Say name and version of the compiler."""

    on_cpu: bool


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """Keep what the worker said that it lacks, by its SHA-256."""

    contents: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep holding the slot: the coordinator is alive."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Close the device and give the slot back."""


Work = OpenKernel | CallDevice | Compile | NameCompiler | StoreFiles | Keep | Leave


def pool_of(work: Work) -> Pool:
    """Say whose turn a piece of work waits for on its worker.

    To be told that another run holds a slot nobody has to wait until that run's call is over.
    """
    if isinstance(work, CallDevice):
        return "device"
    return "compile" if isinstance(work, Compile) else "other"


@dataclass(frozen=True, slots=True)
class LacksFiles:
    """The worker cannot begin without the content of these files, by its SHA-256."""

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Value(Generic[_T]):
    value: _T
    __pydantic_config__ = ConfigDict(val_json_bytes="base64", extra="forbid")


# The errors that a worker can report besides running out of memory; another is told by its base.
_ERRORS: dict[str, type[TunerError]] = {
    kind.__name__: kind
    for kind in (
        *(InputError, ExpressionError, SpaceError, TemplateError, KernelError),
        *(DeviceError, DeviceLost, Unmeasured, WorkerError),
    )
}


@dataclass(frozen=True, slots=True)
class _Raised:
    kind: str
    message: str
    path: Path | None = None
    line: int | None = None
    remedy: str | None = None
    workload: str = ""

    def as_error(self) -> Exception:
        if self.kind == MemoryError.__name__:
            return MemoryError(self.message)
        if self.kind == OutOfMemory.__name__:
            return OutOfMemory(self.message, self.workload, remedy=self.remedy)
        kind = _ERRORS.get(self.kind, WorkerError)
        return kind(self.message, path=self.path, line=self.line, remedy=self.remedy)


def write_value(value: object) -> str:
    """Write what came of a piece of work as JSON; raise `ValueError` for what has none."""
    # What else there is are NumPy's numbers.
    plain = methodcaller("item")
    return to_json(
        {"value": value}, bytes_mode="base64", inf_nan_mode="constants", fallback=plain
    ).decode()


def write_error(error: TunerError | MemoryError) -> str:
    """Write what was raised instead as JSON."""
    known = {*_ERRORS, MemoryError.__name__, OutOfMemory.__name__}
    kind = next((one.__name__ for one in type(error).__mro__ if one.__name__ in known), "")
    told = {"kind": kind, "message": str(error)}
    for name in ("message", "path", "line", "remedy", "workload"):
        if (value := getattr(error, name, None)) is not None:
            # A path may hold bytes that no text has.
            told[name] = str(value).encode(errors="backslashreplace").decode()
    return to_json(told).decode()


def read_answer(work: Work, answer: str) -> Any:
    """Read what a worker says of a piece of work, or raise what it raised.

    Raises `ValueError` for what is no answer to it. Nothing that a worker sends is run here.
    """
    said = _adapter(_Value[_expected(work)] | _Raised).validate_json(answer)  # type: ignore[misc]
    if isinstance(said, _Raised):
        raise said.as_error()
    if isinstance(work, CallDevice) and work.method in ("compare", "rank", "watch"):
        lengths = {len(row) for row in _rows(said.value)}
        if lengths != {len(work.arguments[0])}:
            raise ValueError("it has not one value for each program")
    return said.value


def _rows(value: Any) -> Iterable[Sequence[object]]:
    """List the parts of an answer that have a value for each program."""
    if isinstance(value, ComparisonRounds):
        some = (value.isolated_us, value.faults, value.alone_us, value.raced_us)
        return (*value.times_us, *filter(None, some))
    return [value] if value and isinstance(value[0], Outcome) else value


def _expected(work: Work) -> Any:
    match work:
        case OpenKernel():
            return DeviceInfo | LacksFiles | None
        case Compile():
            return LacksFiles | CompileResult
        case CallDevice(method=method, part=part):
            if part == WATCHERS:
                return ToldWatchers
            of = {"": Device, COUNTERS: Counters}.get(part, Watcher)
            return _returned(getattr(of, method))
        case NameCompiler():
            return str
        case Keep():
            return bool
        case _:
            return None


@cache
def _returned(method: Any) -> Any:
    return get_type_hints(method)["return"]
