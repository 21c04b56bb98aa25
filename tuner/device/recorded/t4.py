"""T4 results, the FAIR auto-tuning format for what a tuner measured: read and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.device.recorded.foreign import (
    OWN_KEY,
    Answer,
    MeasuredSpace,
    Own,
    config_key,
    correct,
    damaged,
)
from tuner.device.recorded.kernel_tuner_cache import (
    FAILED_TIME,
    MS_PER_S,
    US_PER_MS,
    earliest,
    is_number,
    own_content,
    parameters_of,
    plain,
    positive,
    sizes_of,
)
from tuner.device.recorded.recording import RecordedProgram
from tuner.model.config import Config
from tuner.model.trial import Status

VERSION = "1.0.0"
# The enumeration of T4's results-schema.json (kernel_tuner/schema/T4/1.0.0).
_INVALIDITY = {
    "correct": Status.CORRECT,
    "constraints": Status.CONSTRAINT,
    "compile": Status.COMPILE,
    "runtime": Status.LAUNCH,
    "timeout": Status.TIMEOUT,
    "correctness": Status.INCORRECT,
}
_WRITTEN = {status: word for word, status in _INVALIDITY.items()} | {
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
    """Tell T4 results from other JSON."""
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
    answers: dict[Config, Answer] = {}
    names = tuple(found.results[0].configuration) if found.results else ()
    for number, result in enumerate(found.results):
        config = _config(result, names, number, path)
        outcome = own.programs.get(config_key(config)) if own else None
        answers[config] = _answer(result, outcome, unit, number, path)
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


def _config(result: _Result, names: tuple[str, ...], number: int, path: Path) -> Config:
    given = result.configuration
    if set(given) != set(names):
        damaged(path, f"result {number} has the parameters {', '.join(given)}, others have others")
    for name in names:
        if not plain(given[name]):
            damaged(path, f"result {number} has no plain value for the parameter {name}")
    return Config(tuple((name, given[name]) for name in names))


def _answer(
    result: _Result, own: RecordedProgram | None, unit: str, number: int, path: Path
) -> Answer:
    spent = (result.times.get(part) for part in ("compilation", "validation", "benchmark"))
    seconds = sum(part for part in spent if positive(part)) * _rate(unit, path) / 1e6
    status = _INVALIDITY.get(result.invalidity)
    if status is None:
        known = ", ".join(_INVALIDITY)
        damaged(path, f"result {number}: {result.invalidity!r} is no invalidity; T4 has {known}")
    if status is Status.CORRECT and result.correctness < 1.0:
        status = Status.INCORRECT
    time_us = None if status is not Status.CORRECT else _time_us(result, unit, number, path)
    if time_us is None:
        status = Status.LAUNCH if status is Status.CORRECT else status
        status, reason = (own.status, own.reason) if own else (status, f"T4 says {status}")
        return Answer(status, reason, seconds=seconds)
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


def _result(config: Config, answer: Answer) -> dict[str, Any]:
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
        "invalidity": _WRITTEN[answer.status],
        "correctness": 0 if answer.status is Status.INCORRECT else 1,
        "measurements": [measured] if correct else [],
        "objectives": ["time"],
    }
