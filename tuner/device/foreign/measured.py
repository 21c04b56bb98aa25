"""What a foreign file holds: every config that was tried, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from tuner.device.recording import (
    TICK_US,
    RecordedDeviceInfo,
    RecordedFinals,
    RecordedProgram,
)
from tuner.errors import DeviceError
from tuner.space import Config, Parameter
from tuner.trial import Status

if TYPE_CHECKING:
    from typing import NoReturn

    from tuner.expressions import Value

# The key under which our own files keep what the format has no place for. Readers ignore it.
OWN_KEY = "kernel_tune"
# What a recording keyed by configs calls the baseline: no config's key, which is a JSON object.
BASELINE = "baseline"
UNKNOWN_DATE = "an unknown date"


@dataclass(frozen=True, slots=True)
class Answer:
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
        """Return it as a recording holds it."""
        if self.status is not Status.CORRECT or self.time_us is None:
            return RecordedProgram(status=self.status, reason=self.reason)
        return RecordedProgram(
            status=self.status,
            reason=self.reason,
            ticks=tuple(map(ticks, self.samples_us or (self.time_us,))),
            calls=self.calls,
            sets=self.sets,
            stopped_early=self.stopped_early,
        )


class Own(BaseModel):
    """What our own files hold besides: the GPU, the workload, the baseline, whole outcomes.

    `programs` is keyed as Kernel Tuner keys its configs and leaves the times to the file's own
    entries; `finals` names its programs by `Config.key`, the first one by `BASELINE`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    kernel: str
    workload: str
    created: str
    operators: dict[str, str] = Field(default_factory=dict)
    device: RecordedDeviceInfo
    baseline: RecordedProgram
    finals: RecordedFinals | None = None
    programs: dict[str, RecordedProgram] = Field(default_factory=dict)


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
    answers: Mapping[Config, Answer]
    created: str = UNKNOWN_DATE
    own: Own | None = field(default=None)


def ticks(time_us: float) -> int:
    """Count the ticks of a recording in a time; at least one."""
    return max(1, round(time_us / TICK_US))


def config_key(config: Mapping[str, Value]) -> str:
    """Write a config as Kernel Tuner keys it: its values, joined by commas."""
    return ",".join(str(value) for value in config.values())


def correct(
    time_us: float, samples_us: tuple[float, ...], seconds: float, own: RecordedProgram | None
) -> Answer:
    """Make the answer of a correct config; `own` tells how we measured it, None that others did."""
    if own is None:
        return Answer(Status.CORRECT, "", time_us, samples_us, seconds=seconds)
    return Answer(
        Status.CORRECT, "", time_us, samples_us, own.calls, own.sets, own.stopped_early, seconds
    )


def damaged(path: Path, what: str) -> NoReturn:
    """Raise the `DeviceError` of a file whose content cannot be right."""
    raise DeviceError(
        f"is damaged: {what}",
        path=path,
        remedy="get it again, or leave out what is wrong: every entry needs a value for each "
        "parameter and a `time`",
    )
