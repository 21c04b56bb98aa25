"""Kernel Tuner's cache files: read, also when left open by a crash, and written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.device.recorded.foreign import (
    OWN_KEY,
    UNKNOWN_DATE,
    ForeignAnswer,
    MeasuredSpace,
    Own,
    config_key,
    correct,
    damaged,
)
from tuner.device.recorded.recording import RecordedProgram
from tuner.model.config import Config, Parameter
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
}
# What older versions of Kernel Tuner wrote for the time of a config that failed, in ms.
FAILED_TIME = 1e20
US_PER_MS = 1e3
MS_PER_S = 1e3
_Plain = bool | int | float | str


class _Cache(BaseModel):
    """The head of a cache file; keys that are of no use here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    device_name: str = ""
    kernel_name: str = ""
    problem_size: Any = None
    tune_params_keys: tuple[str, ...] = Field(min_length=1)
    tune_params: dict[str, tuple[_Plain, ...]] = Field(default_factory=dict)
    cache: dict[str, dict[str, Any]]
    kernel_tune: Own | None = None


def is_cache(content: Mapping[str, Any]) -> bool:
    return "cache" in content


def measured_in_cache(content: Mapping[str, Any], path: Path) -> MeasuredSpace:
    """Make the measured space of a cache file's content; raise `DeviceError` for a damaged one.

    The unit of `time` and `times` is ms. Where there are several objectives, time is what counts.
    """
    try:
        cache = _Cache.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        damaged(path, f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}")
    own = cache.kernel_tune
    outcomes = {} if own is None else own.programs
    answers = {}
    for key, entry in cache.cache.items():
        config = _cache_config(entry, cache.tune_params_keys, key, path)
        answers[config] = _cache_answer(entry, outcomes.get(key), config, f"entry {key!r}", path)
    stamps = (entry.get("timestamp") for entry in cache.cache.values())
    return MeasuredSpace(
        kernel=own.kernel if own else cache.kernel_name,
        device=own.device.name if own else cache.device_name,
        problem_size=sizes_of(cache.problem_size),
        parameters=parameters_of(cache.tune_params_keys, cache.tune_params, answers, path),
        answers=answers,
        created=own.created if own else earliest(stamps),
        own=own,
    )


def cache_text(space: MeasuredSpace) -> str:
    """Write a measured space as Kernel Tuner writes its cache: one entry a line, then closed.

    A config without an answer (`not_recorded`) is left out. The entries come last, as Kernel Tuner,
    which appends to the file, wants it.
    """
    head = {
        "device_name": space.device,
        "kernel_name": space.kernel,
        "problem_size": list(space.problem_size),
        "tune_params_keys": [parameter.name for parameter in space.parameters],
        "tune_params": {parameter.name: list(parameter.values) for parameter in space.parameters},
        "objective": "time",
    }
    if space.own is not None:
        head[OWN_KEY] = own_content(space)
    kept = {c: a for c, a in space.answers.items() if a.status is not Status.NOT_RECORDED}
    entries = (json.dumps({config_key(c): _entry(c, a)})[1:-1] for c, a in kept.items())
    return json.dumps(head, indent="")[:-2] + ',\n"cache": {\n' + ",\n".join(entries) + "}\n}"


def own_content(space: MeasuredSpace) -> dict[str, Any]:
    assert space.own is not None
    programs = {
        config_key(config): answer.program().model_copy(update={"ticks": ()})
        for config, answer in space.answers.items()
    }
    own = space.own.model_copy(update={"programs": programs})
    return {"version": own.version, **own.model_dump(mode="json", exclude_defaults=True)}


def earliest(stamps: Iterable[object]) -> str:
    texts = [stamp for stamp in stamps if isinstance(stamp, str) and stamp[:4].isdecimal()]
    return min(texts).replace(" ", "T", 1) if texts else UNKNOWN_DATE


def parameters_of(
    names: Iterable[str],
    listed: Mapping[str, Iterable[Value]],
    configs: Iterable[Config],
    path: Path,
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
            damaged(path, f"{name}={unlisted[0]!r} is not among its values in `tune_params`")
        parameters.append(Parameter(name, values or _in_order(occurring)))
    return tuple(parameters)


def is_number(value: object) -> TypeGuard[float]:
    """Tell a number, `nan` included; `true` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def positive(value: object) -> TypeGuard[float]:
    return is_number(value) and 0 < value < FAILED_TIME


def plain(value: object) -> bool:
    return isinstance(value, _Plain) and not (isinstance(value, float) and not math.isfinite(value))


def _in_order(values: Iterable[Value]) -> tuple[Value, ...]:
    listed = tuple(values)
    numbers = [value for value in listed if not isinstance(value, str)]
    return tuple(sorted(numbers)) if len(numbers) == len(listed) else listed


def _cache_config(entry: Mapping[str, Any], names: Iterable[str], key: str, path: Path) -> Config:
    pairs = []
    for name in names:
        if not plain(entry.get(name)):
            damaged(path, f"entry {key!r} has no value for the parameter {name}")
        pairs.append((name, entry[name]))
    return Config(tuple(pairs))


def _cache_answer(
    entry: Mapping[str, Any], own: RecordedProgram | None, config: Config, place: str, path: Path
) -> ForeignAnswer:
    seconds = _seconds(entry)
    failure = _failure(entry, config)
    if failure is not None:
        status, reason = (own.status, own.reason) if own else failure
        return ForeignAnswer(status, reason, seconds=seconds)
    time = entry.get("time")
    if not positive(time):
        shown = "no `time`" if time is None else f"a `time` of {time!r}"
        damaged(path, f"{place} has {shown}")
    samples = tuple(t * US_PER_MS for t in _samples(entry))
    return correct(time * US_PER_MS, samples, seconds, own)


def _failure(entry: Mapping[str, Any], config: Config) -> tuple[Status, str] | None:
    told = entry.get("__error__")
    if told is None:
        values = (value for name, value in entry.items() if name not in config)
        told = next((v for v in values if isinstance(v, str) and v in ERRORS), None)
    time = entry.get("time")
    if told is None and isinstance(time, str):
        told = time
    if told is None and is_number(time) and not abs(time) < FAILED_TIME:
        return Status.LAUNCH, "Kernel Tuner recorded a time that stands for a failure"
    if told is None:
        return None
    return ERRORS.get(str(told), Status.LAUNCH), f"Kernel Tuner recorded {told}"


def _samples(entry: Mapping[str, Any]) -> Iterator[float]:
    times = entry.get("times")
    if isinstance(times, list) and all(positive(one) for one in times):
        yield from times


def _seconds(entry: Mapping[str, Any]) -> float:
    parts = (entry.get(f"{part}_time") for part in ("compile", "verification", "benchmark"))
    return sum(part for part in parts if positive(part)) / MS_PER_S


def sizes_of(problem_size: object) -> tuple[int, ...]:
    """Read `4096`, `[4096, 4096]` or `["4096"]`; a size that is computed is none."""
    sizes = problem_size if isinstance(problem_size, list) else [problem_size]
    texts = [str(size) for size in sizes if not isinstance(size, bool)]
    return tuple(map(int, texts)) if texts and all(t.isdecimal() for t in texts) else ()


def _entry(config: Config, answer: ForeignAnswer) -> dict[str, Any]:
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
    return entry | {
        "compile_time": 0.0,
        "verification_time": 0.0,
        "benchmark_time": answer.seconds * MS_PER_S,
        "strategy_time": 0.0,
        "framework_time": 0.0,
    }


VERSION = "1.0.0"
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
    Status.RESOURCE_LIMIT: "constraints"
}
_US_PER_UNIT = {
    **dict.fromkeys(("s", "seconds"), 1e6),
    **dict.fromkeys(("ms", "milliseconds"), US_PER_MS),
    **dict.fromkeys(("us", "microseconds"), 1.0),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-3),
}
_DEFAULT_UNIT = "milliseconds"


class _Measurement(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    value: Any = None
    unit: str = ""


class _Result(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    configuration: dict[str, Any] = Field(min_length=1)
    invalidity: str = "correct"
    correctness: float = 1.0
    timestamp: str = ""
    times: dict[str, Any] = Field(default_factory=dict)
    measurements: tuple[_Measurement, ...] = ()


class _Results(BaseModel):
    """The results file; keys that are of no use here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    results: tuple[_Result, ...]
    metadata: dict[str, Any] = Field(default_factory=dict)


def is_t4(content: Mapping[str, Any]) -> bool:
    return "results" in content


def measured_in_t4(content: Mapping[str, Any], path: Path) -> MeasuredSpace:
    """Make the measured space of T4 results; raise `DeviceError` for damaged ones.

    T4 names no kernel, GPU or problem size: they are taken from `kernel_name`, `device_name` and
    `problem_size` in its metadata where somebody has put them there.
    """
    try:
        found = _Results.model_validate(content)
        own = found.metadata.get(OWN_KEY)
        own = None if own is None else Own.model_validate(own)
    except ValidationError as error:
        first = error.errors()[0]
        damaged(path, f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}")
    unit = str(found.metadata.get("timeunit") or _DEFAULT_UNIT)
    answers: dict[Config, ForeignAnswer] = {}
    names = tuple(found.results[0].configuration) if found.results else ()
    for number, result in enumerate(found.results):
        config = _t4_config(result, names, number, path)
        outcome = own.programs.get(config_key(config)) if own else None
        answers[config] = _t4_answer(result, outcome, unit, number, path)
    return MeasuredSpace(
        kernel=own.kernel if own else str(found.metadata.get("kernel_name") or ""),
        device=own.device.name if own else str(found.metadata.get("device_name") or ""),
        problem_size=sizes_of(found.metadata.get("problem_size")),
        parameters=parameters_of(names, {}, answers, path),
        answers=answers,
        created=own.created if own else earliest(r.timestamp for r in found.results),
        own=own,
    )


def t4_text(space: MeasuredSpace) -> str:
    """Write a measured space as T4 results; a config without an answer is left out."""
    metadata: dict[str, Any] = {
        "timeunit": _DEFAULT_UNIT,
        "kernel_name": space.kernel,
        "device_name": space.device,
        "problem_size": list(space.problem_size),
    }
    if space.own is not None:
        metadata[OWN_KEY] = own_content(space)
    kept = {c: a for c, a in space.answers.items() if a.status is not Status.NOT_RECORDED}
    results = [_result(config, answer) for config, answer in kept.items()]
    return json.dumps({"schema_version": VERSION, "results": results, "metadata": metadata})


def _t4_config(result: _Result, names: tuple[str, ...], number: int, path: Path) -> Config:
    given = result.configuration
    if set(given) != set(names):
        damaged(path, f"result {number} has the parameters {', '.join(given)}, others have others")
    for name in names:
        if not plain(given[name]):
            damaged(path, f"result {number} has no plain value for the parameter {name}")
    return Config(tuple((name, given[name]) for name in names))


def _t4_answer(
    result: _Result, own: RecordedProgram | None, unit: str, number: int, path: Path
) -> ForeignAnswer:
    spent = (result.times.get(part) for part in ("compilation", "validation", "benchmark"))
    seconds = sum(part for part in spent if positive(part)) * _rate(unit, path) / 1e6
    status = _T4_STATUS.get(result.invalidity)
    if status is None:
        known = ", ".join(_T4_STATUS)
        damaged(path, f"result {number}: {result.invalidity!r} is no invalidity; T4 has {known}")
    if status is Status.CORRECT and result.correctness < 1.0:
        status = Status.INCORRECT
    time_us = None if status is not Status.CORRECT else _time_us(result, unit, number, path)
    if time_us is None:
        status = Status.LAUNCH if status is Status.CORRECT else status
        status, reason = (own.status, own.reason) if own else (status, f"T4 says {status}")
        return ForeignAnswer(status, reason, seconds=seconds)
    runtimes = result.times.get("runtimes")
    samples: tuple[float, ...] = ()
    if isinstance(runtimes, list) and all(positive(one) for one in runtimes):
        samples = tuple(one * _rate(unit, path) for one in runtimes)
    return correct(time_us, samples, seconds, own)


def _time_us(result: _Result, unit: str, number: int, path: Path) -> float | None:
    """Find the time of a correct config; None where a text says that there is none after all."""
    for one in result.measurements:
        if one.name != "time":
            continue
        if isinstance(one.value, str) or (
            is_number(one.value) and not abs(one.value) < FAILED_TIME
        ):
            return None
        if not positive(one.value):
            damaged(path, f"result {number} has a time of {one.value!r}")
        return float(one.value) * _rate(one.unit or unit, path)
    runtimes = result.times.get("runtimes")
    if not (isinstance(runtimes, list) and runtimes and all(positive(t) for t in runtimes)):
        damaged(path, f"result {number} is correct and has no measurement named `time`")
    return fmean(runtimes) * _rate(unit, path)


def _rate(unit: str, path: Path) -> float:
    if unit not in _US_PER_UNIT:
        damaged(path, f"{unit!r} is no unit of time; known are {', '.join(_US_PER_UNIT)}")
    return _US_PER_UNIT[unit]


def _result(config: Config, answer: ForeignAnswer) -> dict[str, Any]:
    correct = answer.status is Status.CORRECT and answer.time_us is not None
    times = {
        "compilation": 0.0,
        "benchmark": answer.seconds * MS_PER_S,
        "framework": 0.0,
        "search_algorithm": 0.0,
        "validation": 0.0,
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
