"""Kernel Tuner's cache files and T4 results: what a tuner measured, read and written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeGuard, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.device.recorded.recording import RecordedProgram
from tuner.extensions.study.foreign import (
    OWN_KEY,
    UNKNOWN_DATE,
    ForeignAnswer,
    MeasuredSpace,
    Own,
    config_key,
    damaged,
    load_json,
    naming,
)
from tuner.model.config import Config, Parameter
from tuner.model.errors import DeviceError
from tuner.model.expressions import Value
from tuner.model.trial import Status

# `kernel_tuner.util.read_cache` knows these; it takes "too many resources" for invalid as well.
ERRORS = {
    "InvalidConfig": Status.CONSTRAINT,
    "CompilationFailedConfig": Status.COMPILE,
    "RuntimeFailedConfig": Status.LAUNCH,
    "ErrorConfig": Status.LAUNCH,
}
_CACHE_ERROR = {
    Status.CONSTRAINT: "InvalidConfig",
    Status.RESOURCE_LIMIT: "InvalidConfig",
    Status.COMPILE: "CompilationFailedConfig",
    Status.LAUNCH: "RuntimeFailedConfig",
    Status.TIMEOUT: "RuntimeFailedConfig",
    Status.INCORRECT: "RuntimeFailedConfig",
    Status.OTHER_BITS: "InvalidConfig",
}
# What older versions of Kernel Tuner wrote for the time of a config that failed, in ms.
FAILED_TIME = 1e20
US_PER_MS = 1e3
MS_PER_S = 1e3

T4_VERSION = "1.0.0"
# The enumeration of T4's results-schema.json (kernel_tuner/schema/T4/1.0.0).
_T4_STATUS = {
    "correct": Status.CORRECT,
    "constraints": Status.CONSTRAINT,
    "compile": Status.COMPILE,
    "runtime": Status.LAUNCH,
    "timeout": Status.TIMEOUT,
    "correctness": Status.INCORRECT,
}
_T4_INVALIDITY = {status: word for word, status in _T4_STATUS.items()} | {
    Status.RESOURCE_LIMIT: "constraints",
    Status.OTHER_BITS: "constraints",
}
_US_PER_UNIT = {
    **dict.fromkeys(("s", "seconds"), 1e6),
    **dict.fromkeys(("ms", "milliseconds"), US_PER_MS),
    **dict.fromkeys(("us", "microseconds"), 1.0),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-3),
}
_DEFAULT_UNIT = "milliseconds"
_Plain = bool | int | float | str
_Model = TypeVar("_Model", bound=BaseModel)


class _Read(BaseModel):
    """A part of such a file; keys that are of no use here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Cache(_Read):
    device_name: str = ""
    kernel_name: str = ""
    tune_params_keys: tuple[str, ...] = Field(min_length=1)
    tune_params: dict[str, tuple[_Plain, ...]] = Field(default_factory=dict)
    cache: dict[str, dict[str, Any]]
    kernel_tune: Own | None = None


class _Measurement(_Read):
    name: str
    value: Any = None
    unit: str = ""


class _Result(_Read):
    configuration: dict[str, Any] = Field(min_length=1)
    invalidity: str = "correct"
    correctness: float = 1.0
    timestamp: str = ""
    times: dict[str, Any] = Field(default_factory=dict)
    measurements: tuple[_Measurement, ...] = ()


class _Results(_Read):
    results: tuple[_Result, ...]
    metadata: dict[str, Any] = Field(default_factory=dict)


def load_measured(path: Path) -> MeasuredSpace:
    """Read a Kernel Tuner cache or T4 results; raise `DeviceError` for anything else."""
    with naming(path):
        content = load_json(path)
        if "cache" in content:
            return measured_in_cache(content)
        if "results" in content:
            return measured_in_t4(content)
        raise DeviceError(
            "is neither a Kernel Tuner cache nor T4 results",
            remedy="a cache has the key `cache`, T4 results have `results`",
        )


def measured_in_cache(content: Mapping[str, Any]) -> MeasuredSpace:
    """Make the measured space of a cache file's content; raise `DeviceError` for a damaged one.

    The unit of `time` and `times` is ms. Where there are several objectives, time is what counts.
    """
    cache = _valid(_Cache, content)
    own = cache.kernel_tune
    outcomes = {} if own is None else own.programs
    answers = {}
    for key, entry in cache.cache.items():
        config = _config(entry, cache.tune_params_keys, f"entry {key!r} has no value")
        answer = _cache_answer(entry, config, f"entry {key!r}")
        answers[config] = _as_kept(answer, outcomes.get(key))
    parameters = _parameters_of(cache.tune_params_keys, cache.tune_params, answers)
    stamps = (entry.get("timestamp") for entry in cache.cache.values())
    return _measured(content, parameters, answers, stamps, own)


def measured_in_t4(content: Mapping[str, Any]) -> MeasuredSpace:
    """Make the measured space of T4 results; raise `DeviceError` for damaged ones.

    T4 names no kernel, GPU or problem size: they are taken from `kernel_name`, `device_name` and
    `problem_size` in its metadata where somebody has put them there.
    """
    found = _valid(_Results, content)
    kept = found.metadata.get(OWN_KEY)
    own = None if kept is None else _valid(Own, kept)
    unit = str(found.metadata.get("timeunit") or _DEFAULT_UNIT)
    answers: dict[Config, ForeignAnswer] = {}
    names = tuple(found.results[0].configuration) if found.results else ()
    for number, result in enumerate(found.results):
        given = result.configuration
        if set(given) != set(names):
            damaged(f"result {number} has the parameters {', '.join(given)}, others have others")
        config = _config(given, names, f"result {number} has no plain value")
        outcome = own.programs.get(config_key(config)) if own else None
        answers[config] = _as_kept(_t4_answer(result, unit, number), outcome)
    parameters = _parameters_of(names, {}, answers)
    return _measured(
        found.metadata, parameters, answers, (one.timestamp for one in found.results), own
    )


def _config(given: Mapping[str, Any], names: Iterable[str], lacking: str) -> Config:
    for name in names:
        if not _is_plain(given.get(name)):
            damaged(f"{lacking} for the parameter {name}")
    return Config(tuple((name, given[name]) for name in names))


def _measured(
    told: Mapping[str, Any],
    parameters: tuple[Parameter, ...],
    answers: Mapping[Config, ForeignAnswer],
    stamps: Iterable[object],
    own: Own | None,
) -> MeasuredSpace:
    dates = [stamp for stamp in stamps if isinstance(stamp, str) and stamp[:4].isdecimal()]
    created = min(dates).replace(" ", "T", 1) if dates else UNKNOWN_DATE
    return MeasuredSpace(
        kernel=own.kernel if own else str(told.get("kernel_name") or ""),
        device=own.device.name if own else str(told.get("device_name") or ""),
        problem_size=_sizes_of(told.get("problem_size")),
        parameters=parameters,
        answers=answers,
        created=own.created if own else created,
        own=own,
    )


def cache_text(space: MeasuredSpace) -> str:
    """Write a measured space as Kernel Tuner writes its cache: one entry a line, then closed.

    A config without an answer (`not_recorded`) is left out. The entries come last, as Kernel Tuner,
    which appends to the file, wants it.
    """
    head = {
        **_told(space),
        "tune_params_keys": [parameter.name for parameter in space.parameters],
        "tune_params": {parameter.name: list(parameter.values) for parameter in space.parameters},
        "objective": "time",
    }
    entries = (
        json.dumps({config_key(config): _cache_entry(config, answer)})[1:-1]
        for config, answer in space.answers.items()
        if answer.status is not Status.NOT_RECORDED
    )
    return json.dumps(head, indent="")[:-2] + ',\n"cache": {\n' + ",\n".join(entries) + "}\n}"


def t4_text(space: MeasuredSpace) -> str:
    """Write a measured space as T4 results; a config without an answer is left out."""
    metadata = {"timeunit": _DEFAULT_UNIT, **_told(space)}
    results = [
        _t4_result(config, answer)
        for config, answer in space.answers.items()
        if answer.status is not Status.NOT_RECORDED
    ]
    return json.dumps({"schema_version": T4_VERSION, "results": results, "metadata": metadata})


def _valid(model: type[_Model], content: object) -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        damaged(f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}")


def _told(space: MeasuredSpace) -> dict[str, Any]:
    told: dict[str, Any] = {
        "device_name": space.device,
        "kernel_name": space.kernel,
        "problem_size": list(space.problem_size),
    }
    if space.own is None:
        return told
    programs = {
        config_key(config): answer.program().model_copy(update={"ticks": ()})
        for config, answer in space.answers.items()
    }
    own = space.own.model_copy(update={"programs": programs})
    content = own.model_dump(mode="json", exclude_defaults=True)
    return {**told, OWN_KEY: {"version": own.version, **content}}


def _parameters_of(
    names: Iterable[str],
    listed: Mapping[str, Iterable[Value]],
    configs: Iterable[Config],
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
            damaged(f"{name}={unlisted[0]!r} is not among its values in `tune_params`")
        numbers = [value for value in occurring if not isinstance(value, str)]
        in_order = sorted(numbers) if len(numbers) == len(occurring) else occurring
        parameters.append(Parameter(name, values or tuple(in_order)))
    return tuple(parameters)


def _sizes_of(problem_size: object) -> tuple[int, ...]:
    """Read `4096`, `[4096, 4096]` or `["4096"]`; a size that is computed is none."""
    sizes = problem_size if isinstance(problem_size, list) else [problem_size]
    texts = [str(size) for size in sizes if not isinstance(size, bool)]
    return tuple(map(int, texts)) if texts and all(t.isdecimal() for t in texts) else ()


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_time(value: object) -> TypeGuard[float]:
    return _is_number(value) and 0 < value < FAILED_TIME


def _stands_for_failure(time: object) -> bool:
    return _is_number(time) and not abs(time) < FAILED_TIME  # NaN too


def _is_plain(value: object) -> bool:
    return isinstance(value, _Plain) and not (isinstance(value, float) and not math.isfinite(value))


def _times(found: object, us_per_unit: float) -> tuple[float, ...]:
    if isinstance(found, list) and all(map(_is_time, found)):
        return tuple(one * us_per_unit for one in found)
    return ()


def _as_kept(answer: ForeignAnswer, own: RecordedProgram | None) -> ForeignAnswer:
    """Add what our own part of a file says of how we measured it, or of how it failed."""
    if own is None:
        return answer
    if answer.status is not Status.CORRECT:
        return replace(answer, status=own.status, reason=own.reason)
    return replace(answer, calls=own.calls, sets=own.sets, stopped_early=own.stopped_early)


def _cache_answer(entry: Mapping[str, Any], config: Config, place: str) -> ForeignAnswer:
    spent = (entry.get(f"{part}_time") for part in ("compile", "verification", "benchmark"))
    seconds = sum(filter(_is_time, spent)) / MS_PER_S
    time, told = entry.get("time"), entry.get("__error__")
    if told is None:
        values = (value for name, value in entry.items() if name not in config)
        told = next((v for v in values if isinstance(v, str) and v in ERRORS), None)
    if told is None and isinstance(time, str):
        told = time
    if told is not None:
        status, reason = ERRORS.get(str(told), Status.LAUNCH), f"Kernel Tuner recorded {told}"
        return ForeignAnswer(status, reason, seconds=seconds)
    if _stands_for_failure(time):
        reason = "Kernel Tuner recorded a time that stands for a failure"
        return ForeignAnswer(Status.LAUNCH, reason, seconds=seconds)
    if not _is_time(time):
        shown = "no `time`" if time is None else f"a `time` of {time!r}"
        damaged(f"{place} has {shown}")
    samples_us = _times(entry.get("times"), US_PER_MS)
    return ForeignAnswer(Status.CORRECT, "", time * US_PER_MS, samples_us, seconds=seconds)


def _cache_entry(config: Config, answer: ForeignAnswer) -> dict[str, Any]:
    entry: dict[str, Any] = dict(config)
    error = _CACHE_ERROR.get(answer.status)
    if error is not None:
        entry |= {"time": error, "__error__": error}
    elif answer.time_us is not None:
        entry |= {
            "time": answer.time_us / US_PER_MS,
            "times": [sample / US_PER_MS for sample in answer.samples_us],
        }
    # A session keeps the time of a trial as one number: it stands where the most of it went.
    spent = {"compile": 0.0, "verification": 0.0, "benchmark": answer.seconds * MS_PER_S}
    spent |= {"strategy": 0.0, "framework": 0.0}
    return entry | {f"{part}_time": seconds for part, seconds in spent.items()}


def _t4_answer(result: _Result, unit: str, number: int) -> ForeignAnswer:
    us_per_unit = _us_per(unit)
    spent = (result.times.get(part) for part in ("compilation", "validation", "benchmark"))
    seconds = sum(filter(_is_time, spent)) * us_per_unit / 1e6
    status = _T4_STATUS.get(result.invalidity)
    if status is None:
        known = ", ".join(_T4_STATUS)
        damaged(f"result {number}: {result.invalidity!r} is no invalidity; T4 has {known}")
    if status is Status.CORRECT and result.correctness < 1.0:
        status = Status.INCORRECT
    time_us = None if status is not Status.CORRECT else _t4_time_us(result, unit, number)
    if time_us is None:
        status = Status.LAUNCH if status is Status.CORRECT else status
        return ForeignAnswer(status, f"T4 says {status}", seconds=seconds)
    samples_us = _times(result.times.get("runtimes"), us_per_unit)
    return ForeignAnswer(status, "", time_us, samples_us, seconds=seconds)


def _t4_time_us(result: _Result, unit: str, number: int) -> float | None:
    """Find the time of a correct config; None where a text says that there is none after all."""
    for one in result.measurements:
        if one.name != "time":
            continue
        if isinstance(one.value, str) or _stands_for_failure(one.value):
            return None
        if not _is_time(one.value):
            damaged(f"result {number} has a time of {one.value!r}")
        return float(one.value) * _us_per(one.unit or unit)
    runtimes = _times(result.times.get("runtimes"), 1.0)
    if not runtimes:
        damaged(f"result {number} is correct and has no measurement named `time`")
    return fmean(runtimes) * _us_per(unit)


def _us_per(unit: str) -> float:
    if unit not in _US_PER_UNIT:
        damaged(f"{unit!r} is no unit of time; known are {', '.join(_US_PER_UNIT)}")
    return _US_PER_UNIT[unit]


def _t4_result(config: Config, answer: ForeignAnswer) -> dict[str, Any]:
    correct = answer.status is Status.CORRECT and answer.time_us is not None
    times = {
        "compilation": 0.0,
        "benchmark": answer.seconds * MS_PER_S,
        **dict.fromkeys(("framework", "search_algorithm", "validation"), 0.0),
        "runtimes": [sample / US_PER_MS for sample in answer.samples_us],
    }
    measured = {"name": "time", "value": (answer.time_us or 0.0) / US_PER_MS, "unit": "ms"}
    return {
        "configuration": dict(config),
        "times": times,
        "invalidity": _T4_INVALIDITY[answer.status],
        "correctness": 0 if answer.status is Status.INCORRECT else 1,
        "measurements": [measured] if correct else [],
        "objectives": ["time"],
    }
