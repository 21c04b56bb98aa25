"""Reading a stranger's JSON file, packed or not, without letting it fill the memory."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

from pydantic import Field

from tuner.device.recorded.known_gpus import GPUS, known_gpu
from tuner.device.recorded.recording import (
    MAX_BYTES,
    TICK_US,
    Kept,
    RecordedDeviceInfo,
    RecordedFinals,
    RecordedProgram,
)
from tuner.model.config import Config, Parameter
from tuner.model.errors import DeviceError
from tuner.model.expressions import Value
from tuner.model.trial import Status
from tuner.process.files import open_regular, read_regular

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"


def is_foreign(path: Path) -> bool:
    """Tell a file that is plain or gzip-compressed JSON; our own recordings are neither."""
    try:
        with open_regular(path) as file:
            start = file.read(64)
    except OSError:
        return False
    return start.startswith(_GZIP) or start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to a `DeviceError` about its content."""
    try:
        yield
    except DeviceError as error:
        error.path = path
        raise


def load_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object, closed or as a crash of Kernel Tuner left it.

    Raises `DeviceError`, without the file's name, where it is missing, too large, or no such thing.
    """
    try:
        content = _parsed(_text(path))
    except FileNotFoundError as error:
        raise DeviceError("there is no such file") from error
    except IsADirectoryError as error:
        raise DeviceError("is a folder", remedy="name a file in it") from error
    except (OSError, EOFError, zlib.error, RecursionError, ValueError) as error:
        raise DeviceError(
            f"cannot be read: {error}",
            remedy="Kernel Tuner's caches and T4 results are JSON, plain or packed with gzip; "
            "recordings of `tune record` end in .json.xz",
        ) from error
    if not isinstance(content, dict):
        raise DeviceError(
            f"holds a JSON {type(content).__name__}, not an object",
            remedy="a Kernel Tuner cache has the key `cache`, T4 results have `results`",
        )
    return content


def _text(path: Path) -> str:
    packed = read_regular(path, MAX_BYTES)
    if packed.startswith(_XZ):
        raise ValueError("it is packed with xz")
    content = packed
    if packed.startswith(_GZIP):
        # Asked for one byte too many, `read` unpacks no more than that of a bomb.
        with gzip.open(BytesIO(packed)) as stream:
            content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"over {MAX_BYTES} bytes when unpacked")
    return content.decode("utf-8-sig")


def _parsed(text: str) -> Any:
    """Read JSON; where the end is missing, close it after the last entry that is whole.

    Kernel Tuner appends an entry a line and closes its cache only at the end of the run: after a
    crash the closing braces lack, and the last line may be cut.
    """
    text = text.strip()
    try:
        return json.loads(text)
    except ValueError:
        for whole in (text, text.rpartition("\n")[0].rstrip()):
            with suppress(ValueError):
                return json.loads(whole.removesuffix(",") + "}\n}")
        raise


def device_info(name: str) -> RecordedDeviceInfo:
    """Look a GPU up by its driver's name for it; raise `DeviceError` for an unknown one."""
    if (gpu := known_gpu(name)) is not None:
        return gpu.model_copy(update={"name": name})
    what = f"was made on {name}, whose numbers are not known"
    remedy = f"known are {', '.join(GPUS)}; `tune compare` replays a file of any GPU"
    if not name:
        what = "does not say on which GPU it was made"
        where = "at the top of a cache, in the `metadata` of T4 results"
        added = f'add `"device_name": "..."` as the GPU\'s driver calls it ({where})'
        remedy = f"{added}; {remedy}"
    raise DeviceError(what, remedy=remedy)


def l2_bytes_of(name: str) -> int:
    gpu = known_gpu(name)
    return 0 if gpu is None else gpu.l2_bytes


# The key under which our own files keep what the format has no place for. Readers ignore it.
OWN_KEY = "kernel_tune"
# What a recording keyed by configs calls the baseline: no config's key, which is a JSON object.
BASELINE = "baseline"
UNKNOWN_DATE = "an unknown date"


@dataclass(frozen=True, slots=True)
class ForeignAnswer:
    """What became of one config.

    `time_us` is what the file says the config takes, `samples_us` the single times behind it where
    it holds them. `calls`, `sets` and `stopped_early` are those of `Measurement`; `seconds` is what
    the trial took.
    """

    status: Status
    reason: str = ""
    time_us: float | None = None
    samples_us: tuple[float, ...] = ()
    calls: int = 1
    sets: int = 1
    stopped_early: bool = False
    seconds: float = 0.0

    def program(self) -> RecordedProgram:
        program = RecordedProgram(status=self.status, reason=self.reason)
        if self.status is not Status.CORRECT or self.time_us is None:
            return program
        samples = tuple(map(ticks, self.samples_us or (self.time_us,)))
        how = {"calls": self.calls, "sets": self.sets, "stopped_early": self.stopped_early}
        return program.model_copy(update={"ticks": samples, **how})


class Own(Kept):
    """What our own files hold besides: the GPU, the workload, the baseline, whole outcomes.

    `programs` is keyed as Kernel Tuner keys its configs and leaves the times to the file's own
    entries; `finals` names its programs by `Config.key`, the first one by `BASELINE`.
    `surroundings` is what the times were measured in (`Surroundings.content`), "" for alone.
    """

    version: int = 1
    kernel: str
    workload: str
    created: str
    operators: dict[str, str] = Field(default_factory=dict)
    device: RecordedDeviceInfo
    baseline: RecordedProgram
    finals: RecordedFinals | None = None
    programs: dict[str, RecordedProgram] = Field(default_factory=dict)
    surroundings: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredSpace:
    """The parameters of one kernel on one GPU, and the answer for every config that was tried.

    `device` is "" where the file names none. `problem_size` has one number per dimension and is
    empty where the file holds none. `created` is a date, or `UNKNOWN_DATE`.
    """

    kernel: str
    device: str
    problem_size: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    answers: Mapping[Config, ForeignAnswer]
    created: str = UNKNOWN_DATE
    own: Own | None = None


def ticks(time_us: float) -> int:
    return max(1, round(time_us / TICK_US))


def config_key(config: Mapping[str, Value]) -> str:
    """Write a config as Kernel Tuner keys it: its values, joined by commas."""
    return ",".join(str(value) for value in config.values())


def damaged(what: str) -> NoReturn:
    raise DeviceError(
        f"is damaged: {what}",
        remedy="get it again, or leave out what is wrong: every entry needs a value for each "
        "parameter and a `time`",
    )
