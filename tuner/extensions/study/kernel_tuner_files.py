"""Kernel Tuner's cache files and T4 results: what a tuner measured, read and written."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn, TypeGuard, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
from tuner.process.files import open_regular, parse_json, read_regular

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
# The key under which our own files keep what the format has no place for. Readers ignore it.
OWN_KEY = "kernel_tune"
UNKNOWN_DATE = "an unknown date"
T4_VERSION = "1.0.0"
# What `kernel_tuner.util.read_cache` knows, and the invalidities of T4's results-schema.json
# (kernel_tuner/schema/T4/1.0.0).
_CACHE_ERRORS = {
    "InvalidConfig": Status.CONSTRAINT,
    "CompilationFailedConfig": Status.COMPILE,
    "RuntimeFailedConfig": Status.LAUNCH,
    "ErrorConfig": Status.LAUNCH,
}
_INVALIDITIES = {
    "correct": Status.CORRECT,
    "constraints": Status.CONSTRAINT,
    "compile": Status.COMPILE,
    "runtime": Status.LAUNCH,
    "timeout": Status.TIMEOUT,
    "correctness": Status.INCORRECT,
}
# How a failure is written in either; both take "too many resources" for invalid as well.
_WRITTEN = {
    Status.CONSTRAINT: ("InvalidConfig", "constraints"),
    Status.RESOURCE_LIMIT: ("InvalidConfig", "constraints"),
    Status.COMPILE: ("CompilationFailedConfig", "compile"),
    Status.LAUNCH: ("RuntimeFailedConfig", "runtime"),
    Status.TIMEOUT: ("RuntimeFailedConfig", "timeout"),
    Status.INCORRECT: ("RuntimeFailedConfig", "correctness"),
    Status.OTHER_BITS: ("InvalidConfig", "constraints"),
    Status.NOT_INVARIANT: ("InvalidConfig", "constraints"),
}
# What older versions of Kernel Tuner wrote for the time of a config that failed, in ms.
FAILED_TIME = 1e20
US_PER_MS = MS_PER_S = 1e3
_US_PER_UNIT = {
    **dict.fromkeys(("s", "seconds"), 1e6),
    **dict.fromkeys(("ms", "milliseconds"), US_PER_MS),
    **dict.fromkeys(("us", "microseconds"), 1.0),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-3),
}
_DEFAULT_UNIT = "milliseconds"
_Plain = bool | int | float | str
_Model = TypeVar("_Model", bound=BaseModel)


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


def is_foreign(path: Path) -> bool:
    """Tell JSON by its first byte, plain or packed with gzip; our own recordings are xz."""
    try:
        with open_regular(path) as file:
            start = file.read(64)
    except OSError:
        return False
    return start.startswith(_GZIP) or start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(
        (b"{", b"[", b'"')
    )


def load_measured(path: Path) -> MeasuredSpace:
    """Read a Kernel Tuner cache or T4 results; raise `DeviceError` for anything else."""
    try:
        content = _load_json(path)
        if "cache" in content:
            return measured_in_cache(content)
        if "results" in content:
            return measured_in_t4(content)
        raise DeviceError(
            "is neither a Kernel Tuner cache nor T4 results",
            remedy="a cache has the key `cache`, T4 results have `results`",
        )
    except DeviceError as error:
        error.path = path
        raise


def _load_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object, closed or as a crash of Kernel Tuner left it."""
    try:
        content = packed = read_regular(path, MAX_BYTES)
        if packed.startswith(_XZ):
            raise ValueError("it is packed with xz")
        if packed.startswith(_GZIP):
            # Asked for one byte too many, `read` unpacks no more than that of a bomb.
            with gzip.open(BytesIO(packed)) as stream:
                content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"over {MAX_BYTES} bytes when unpacked")
        parsed = _parse_open_ended(content.decode("utf-8-sig").strip())
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
    if not isinstance(parsed, dict):
        raise DeviceError(
            f"holds a JSON {type(parsed).__name__}, not an object",
            remedy="a Kernel Tuner cache has the key `cache`, T4 results have `results`",
        )
    return parsed


def _parse_open_ended(text: str) -> Any:
    """Read JSON; where the end is missing, close it after the last entry that is whole.

    Kernel Tuner appends an entry a line and closes its cache only at the end of the run: after a
    crash the closing braces lack, and the last line may be cut.
    """
    try:
        return parse_json(text)
    except ValueError:
        for whole in (text, text.rpartition("\n")[0].rstrip()):
            with suppress(ValueError):
                return parse_json(whole.removesuffix(",") + "}\n}")
        raise


class _Ignoring(BaseModel):
    """A part of such a file; keys that are of no use here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _CacheModel(_Ignoring):
    tune_params_keys: tuple[str, ...] = Field(min_length=1)
    tune_params: dict[str, tuple[_Plain, ...]] = Field(default_factory=dict)
    cache: dict[str, dict[str, Any]]
    kernel_tune: Own | None = None


class _MeasurementModel(_Ignoring):
    name: str
    value: Any = None
    unit: str = ""


class _ResultModel(_Ignoring):
    configuration: dict[str, Any] = Field(min_length=1)
    invalidity: str = "correct"
    correctness: float = 1.0
    timestamp: str = ""
    times: dict[str, Any] = Field(default_factory=dict)
    measurements: tuple[_MeasurementModel, ...] = ()


class _ResultsModel(_Ignoring):
    results: tuple[_ResultModel, ...]
    metadata: dict[str, Any] = Field(default_factory=dict)


def measured_in_cache(content: Mapping[str, Any]) -> MeasuredSpace:
    """Make the measured space of a cache file's content; raise `DeviceError` for a damaged one.

    The unit of `time` and `times` is ms. Where there are several objectives, time is what counts.
    """
    model = _validate(_CacheModel, content)
    answers = {}
    for key, entry in model.cache.items():
        config = _config(entry, model.tune_params_keys, f"entry {key!r} has no value")
        answers[config] = _read_entry(entry, config, f"entry {key!r}")
    parameters = _parameters_of(model.tune_params_keys, model.tune_params, answers)
    stamps = (entry.get("timestamp") for entry in model.cache.values())
    return _measured_space(content, parameters, answers, stamps, model.kernel_tune)


def measured_in_t4(content: Mapping[str, Any]) -> MeasuredSpace:
    """Make the measured space of T4 results; raise `DeviceError` for damaged ones.

    T4 names no kernel, GPU or problem size: they are taken from `kernel_name`, `device_name` and
    `problem_size` in its metadata where somebody has put them there.
    """
    model = _validate(_ResultsModel, content)
    kept = model.metadata.get(OWN_KEY)
    unit = str(model.metadata.get("timeunit") or _DEFAULT_UNIT)
    answers: dict[Config, ForeignAnswer] = {}
    names = tuple(model.results[0].configuration) if model.results else ()
    for number, result in enumerate(model.results):
        given = result.configuration
        if set(given) != set(names):
            _refuse_damage(
                f"result {number} has the parameters {', '.join(given)}, others have others"
            )
        config = _config(given, names, f"result {number} has no plain value")
        answers[config] = _read_result(result, unit, number)
    parameters = _parameters_of(names, {}, answers)
    own = None if kept is None else _validate(Own, kept)
    stamps = (one.timestamp for one in model.results)
    return _measured_space(model.metadata, parameters, answers, stamps, own)


def _config(given: Mapping[str, Any], names: Iterable[str], lacking: str) -> Config:
    for name in names:
        value = given.get(name)
        endless = isinstance(value, float) and not math.isfinite(value)
        if not isinstance(value, _Plain) or endless:
            _refuse_damage(f"{lacking} for the parameter {name}")
    return Config(tuple((name, given[name]) for name in names))


def _measured_space(
    head: Mapping[str, Any],
    parameters: tuple[Parameter, ...],
    answers: dict[Config, ForeignAnswer],
    stamps: Iterable[object],
    own: Own | None,
) -> MeasuredSpace:
    """Complete what was read by what our own part says of how we measured it, or how it failed."""
    size = head.get("problem_size")
    # `4096`, `[4096, 4096]` or `["4096"]`; a size that is computed is none.
    listed = size if isinstance(size, list) else [size]
    sizes = [str(one) for one in listed if not isinstance(one, bool)]
    dates = [stamp for stamp in stamps if isinstance(stamp, str) and stamp[:4].isdecimal()]
    space = MeasuredSpace(
        kernel=str(head.get("kernel_name") or ""),
        device=str(head.get("device_name") or ""),
        problem_size=tuple(map(int, sizes)) if all(map(str.isdecimal, sizes)) else (),
        parameters=parameters,
        answers=answers,
        created=min(dates).replace(" ", "T", 1) if dates else UNKNOWN_DATE,
        own=own,
    )
    if own is None:
        return space
    for config, answer in answers.items():
        kept = own.programs.get(config_key(config))
        if kept is not None and answer.status is Status.CORRECT:
            answers[config] = replace(
                answer, calls=kept.calls, sets=kept.sets, stopped_early=kept.stopped_early
            )
        elif kept is not None:
            answers[config] = replace(answer, status=kept.status, reason=kept.reason)
    return replace(space, kernel=own.kernel, device=own.device.name, created=own.created)


def _validate(model: type[_Model], content: object) -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        _refuse_damage(f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}")


def _refuse_damage(what: str) -> NoReturn:
    raise DeviceError(
        f"is damaged: {what}",
        remedy="get it again, or leave out what is wrong: every entry needs a value for each "
        "parameter and a `time`",
    )


def _parameters_of(
    names: Iterable[str], listed: Mapping[str, Iterable[Value]], configs: Iterable[Config]
) -> tuple[Parameter, ...]:
    """Name the values of every parameter, as listed or else as they occur, each once."""
    found: dict[str, dict[Value, None]] = {name: {} for name in names}
    for config in configs:
        for name, value in config.items():
            found[name].setdefault(value)
    parameters = []
    for name, occurring in found.items():
        values = tuple(dict.fromkeys(listed.get(name, ())))
        unlisted = [value for value in occurring if values and value not in values]
        if unlisted:
            _refuse_damage(f"{name}={unlisted[0]!r} is not among its values in `tune_params`")
        numbers = [value for value in occurring if not isinstance(value, str)]
        in_order = sorted(numbers) if len(numbers) == len(occurring) else occurring
        parameters.append(Parameter(name, values or tuple(in_order)))
    return tuple(parameters)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_time(value: object) -> TypeGuard[float]:
    return _is_number(value) and 0 < value < FAILED_TIME


def _stands_for_failure(time: object) -> bool:
    return _is_number(time) and not abs(time) < FAILED_TIME  # NaN too


def _samples(times: object, us_per_unit: float) -> tuple[float, ...]:
    if isinstance(times, list) and all(map(_is_time, times)):
        return tuple(time * us_per_unit for time in times)
    return ()


def _read_entry(entry: Mapping[str, Any], config: Config, place: str) -> ForeignAnswer:
    """Read one entry of a cache."""
    spent = (entry.get(f"{part}_time") for part in ("compile", "verification", "benchmark"))
    seconds = sum(filter(_is_time, spent)) / MS_PER_S
    time, failure = entry.get("time"), entry.get("__error__")
    if failure is None:
        values = (value for name, value in entry.items() if name not in config)
        known = (v for v in values if isinstance(v, str) and v in _CACHE_ERRORS)
        failure = next(known, time if isinstance(time, str) else None)
    if failure is not None:
        status = _CACHE_ERRORS.get(str(failure), Status.LAUNCH)
        return ForeignAnswer(status, f"Kernel Tuner recorded {failure}", seconds=seconds)
    if _stands_for_failure(time):
        reason = "Kernel Tuner recorded a time that stands for a failure"
        return ForeignAnswer(Status.LAUNCH, reason, seconds=seconds)
    if not _is_time(time):
        _refuse_damage(f"{place} has {'no `time`' if time is None else f'a `time` of {time!r}'}")
    samples_us = _samples(entry.get("times"), US_PER_MS)
    return ForeignAnswer(Status.CORRECT, "", time * US_PER_MS, samples_us, seconds=seconds)


def _read_result(result: _ResultModel, unit: str, number: int) -> ForeignAnswer:
    """Read one of T4's results; a text for a time says that there is none after all."""
    status = _INVALIDITIES.get(result.invalidity)
    if status is None:
        known = ", ".join(_INVALIDITIES)
        _refuse_damage(f"result {number}: {result.invalidity!r} is no invalidity; T4 has {known}")
    if status is Status.CORRECT and result.correctness < 1.0:
        status = Status.INCORRECT
    us_per_unit = _us_per(unit)
    spent = (result.times.get(part) for part in ("compilation", "validation", "benchmark"))
    seconds = sum(filter(_is_time, spent)) * us_per_unit / 1e6
    samples_us = _samples(result.times.get("runtimes"), us_per_unit)
    time_us: float | None = None
    if status is Status.CORRECT:
        measurement = next(
            (measurement for measurement in result.measurements if measurement.name == "time"), None
        )
        if measurement is None and not samples_us:
            _refuse_damage(f"result {number} is correct and has no measurement named `time`")
        if measurement is None:
            time_us = fmean(samples_us)
        elif isinstance(measurement.value, str) or _stands_for_failure(measurement.value):
            status = Status.LAUNCH
        elif _is_time(measurement.value):
            time_us = float(measurement.value) * _us_per(measurement.unit or unit)
        else:
            _refuse_damage(f"result {number} has a time of {measurement.value!r}")
    if time_us is None:
        return ForeignAnswer(status, f"T4 says {status}", seconds=seconds)
    return ForeignAnswer(status, "", time_us, samples_us, seconds=seconds)


def _us_per(unit: str) -> float:
    if unit not in _US_PER_UNIT:
        _refuse_damage(f"{unit!r} is no unit of time; known are {', '.join(_US_PER_UNIT)}")
    return _US_PER_UNIT[unit]


def cache_text(space: MeasuredSpace) -> str:
    """Write a measured space as Kernel Tuner writes its cache: one entry a line, then closed.

    A config without an answer (`not_recorded`) is left out. The entries come last, as Kernel Tuner,
    which appends to the file, wants it.
    """
    head = {
        **_head(space),
        "tune_params_keys": [parameter.name for parameter in space.parameters],
        "tune_params": {parameter.name: list(parameter.values) for parameter in space.parameters},
        "objective": "time",
    }
    entries = []
    for config, answer in space.answers.items():
        if answer.status is Status.NOT_RECORDED:
            continue
        entry: dict[str, Any] = dict(config)
        if answer.status in _WRITTEN:
            entry["time"] = entry["__error__"] = _WRITTEN[answer.status][0]
        elif answer.time_us is not None:
            entry["time"] = answer.time_us / US_PER_MS
            entry["times"] = [sample / US_PER_MS for sample in answer.samples_us]
        # A session keeps the time of a trial as one number: it stands where the most of it went.
        spent = {"compile": 0.0, "verification": 0.0, "benchmark": answer.seconds * MS_PER_S}
        spent |= {"strategy": 0.0, "framework": 0.0}
        entry |= {f"{part}_time": seconds for part, seconds in spent.items()}
        entries.append(json.dumps({config_key(config): entry})[1:-1])
    return json.dumps(head, indent="")[:-2] + ',\n"cache": {\n' + ",\n".join(entries) + "}\n}"


def t4_text(space: MeasuredSpace) -> str:
    """Write a measured space as T4 results; a config without an answer is left out."""
    results = []
    for config, answer in space.answers.items():
        if answer.status is Status.NOT_RECORDED:
            continue
        correct = answer.status is Status.CORRECT and answer.time_us is not None
        times = {
            "compilation": 0.0,
            "benchmark": answer.seconds * MS_PER_S,
            **dict.fromkeys(("framework", "search_algorithm", "validation"), 0.0),
            "runtimes": [sample / US_PER_MS for sample in answer.samples_us],
        }
        measured = {"name": "time", "value": (answer.time_us or 0.0) / US_PER_MS, "unit": "ms"}
        results.append(
            {
                "configuration": dict(config),
                "times": times,
                "invalidity": _WRITTEN.get(answer.status, ("", "correct"))[1],
                "correctness": 0 if answer.status is Status.INCORRECT else 1,
                "measurements": [measured] if correct else [],
                "objectives": ["time"],
            }
        )
    metadata = {"timeunit": _DEFAULT_UNIT, **_head(space)}
    return json.dumps({"schema_version": T4_VERSION, "results": results, "metadata": metadata})


def _head(space: MeasuredSpace) -> dict[str, Any]:
    head: dict[str, Any] = {
        "device_name": space.device,
        "kernel_name": space.kernel,
        "problem_size": list(space.problem_size),
    }
    if space.own is None:
        return head
    programs = {
        config_key(config): answer.program().model_copy(update={"ticks": ()})
        for config, answer in space.answers.items()
    }
    own = space.own.model_copy(update={"programs": programs})
    content = own.model_dump(mode="json", exclude_defaults=True)
    return {**head, OWN_KEY: {"version": own.version, **content}}


def config_key(config: Mapping[str, Value]) -> str:
    """Write a config as Kernel Tuner keys it: its values, joined by commas."""
    return ",".join(str(value) for value in config.values())
