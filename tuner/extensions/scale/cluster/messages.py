"""The messages between coordinator and workers: offers, requests and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from tuner.compiler.base import CompileRequest
from tuner.model import TUNER_VERSION
from tuner.model.kernel import KernelSpec

# What Dask calls the part of a worker's registration that is ours, and calls to it.
TOPIC = "tune"
# Which of a worker's threads do the work: one for its device, one for each compilation, and some
# for what takes no time, or must not wait for these.
Pool = Literal["device", "compile", "other"]
# A worker takes one call for its device at a time, and so many compilations as it has compilers.
COMPILE_RESOURCE = "tune compile"

# What the CPU of a host is called where GPUs have the driver's names.
CPU_MODEL = "host CPU"

# What reaches a terminal comes from another host.
Word = Annotated[str, StringConstraints(pattern=r"^[ -~]{0,200}$", strict=True)]


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One GPU of a host, or its CPU, as the process that owns it announces it.

    `slot` is drawn anew by every process. `model` is the GPU's name, and Dask's resource of it.
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
def _adapter() -> TypeAdapter[SlotInfo]:
    return TypeAdapter(SlotInfo)


def read_info(announced: object) -> SlotInfo | None:
    """Read what a worker announces; None for a worker that is not ours."""
    try:
        return _adapter().validate_python(announced)
    except ValidationError:
        return None


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
    """Take the slot and open a kernel on its device; the answer is a `DeviceInfo`.

    The paths of `spec` are names in the folder that the worker makes of `files`.
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
class WorkRequest:
    """One piece of work for one process. `number` counts a holder's requests up."""

    slot: str
    holder: str
    number: int
    work: Work


@dataclass(frozen=True, slots=True)
class LacksFiles:
    """The worker cannot begin without the content of these files, by its SHA-256."""

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """Another run holds the slot."""


@dataclass(frozen=True, slots=True)
class WorkAnswer:
    """What came of a holder's request: a value, or the error that was raised instead.

    `holder` is "" and `number` 0 where the request could not be read.
    """

    slot: str
    holder: str
    number: int
    value: Any = None
    raised: Exception | None = None
