"""What holds for every record that a run makes, asked of those that are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Comparison, Correctness, EnergyWindow, Measurement, Result
from tuner.session.events import (
    AnswerAccepted,
    CandidateMade,
    Event,
    RoundOutcome,
    Said,
    SearchEnded,
)
from tuner.session.records import CandidateRecord, Record, SessionHeader, SessionRecord

if TYPE_CHECKING:
    from tuner.session.records import Manifest

MOST_ROUNDS = 1_000_000
# Of an entry of a transcript: what is text where it is there, and what was used.
_TEXTS = ("model", "text", "template", "space", "problem", "error", "finish_reason", "reasoning")
_USAGE = {"input_tokens", "cached_tokens", "output_tokens"}
_LARGEST = 1 << 63
# No time, in microseconds, is longer than a year; sums of such stay finite.
_LONGEST_US = 4e13
_AXIS = re.compile(r"[^\W\d]\w*")


def header_problem(header: SessionHeader) -> str:
    """Say what cannot be in a header; "" where it may be a run's."""
    return next(_header_problems(header), "")


def record_problem(record: SessionRecord) -> str:
    """Say what cannot be in a record; "" where it may be a run's."""
    return next(_problems(record), "")


def _header_problems(header: SessionHeader) -> Iterator[str]:
    manifest: Manifest = header.manifest
    if not _is_name(manifest.kernel):
        yield f"no kernel is named {manifest.kernel!r}"
    for name, value in header.environment.items():
        if not (name.isprintable() and value.isprintable()):
            yield f"its environment has {name!r}: {value!r}"
    rate = header.environment.get("streaming_gbps", "0")
    if not _is_number(rate):
        yield f"streaming_gbps is {rate!r}"
    if not 0.0 <= header.seconds < inf:
        yield f"it took {header.seconds} s"
    yield from _problems(manifest.config)


def _problems(value: object) -> Iterator[str]:
    """Look at a value and all that it holds, the outermost first."""
    yield from _own_problems(value)
    if isinstance(value, Said | Correctness | Config):
        return
    if isinstance(value, float) and not isfinite(value):
        yield f"a number is {value}"
    elif isinstance(value, int) and abs(value) >= _LARGEST:
        yield "a number has over 63 bits"
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _problems(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from _problems(one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _problems(getattr(value, field.name))


def _own_problems(value: object) -> Iterator[str]:
    match value:
        case Workload(axes) if not all(_AXIS.fullmatch(axis) and n >= 0 for axis, n in axes):
            yield f"a workload is {value.key!r}"
        case Config() if not all(isinstance(name, str) and name.isprintable() for name in value):
            yield f"a config is {value.key!r}"
        case Record(_, elapsed_s) if not 0.0 <= elapsed_s < inf:
            yield f"a trial ended after {elapsed_s} s"
        case CandidateRecord(name) | CandidateMade(_, name) if not _is_name(name):
            yield f"a candidate is named {name!r}"
        case Measurement(times_us) if not (times_us and _are_times(*times_us)):
            yield f"measured times are {times_us[:3]}"
        case Comparison() if not _is_whole(value):
            yield f"a comparison on {value.workload} has not a time for each program and round"
        case Result() if not _are_times(
            *(value.baseline_us, value.tuned_us, value.isolated_us, value.isolated_baseline_us),
            *(value.alone_us, value.alone_baseline_us),
            *(value.speedup, *value.interval),
        ):
            yield f"the result on {value.workload} is {value.speedup}x, {value.interval}"
        case EnergyWindow(energy_j, seconds, time_us) if not (
            isfinite(energy_j) and 0.0 < seconds < inf and _are_times(time_us)
        ):
            yield f"a window of energy has {energy_j} J in {seconds} s"
        case RoundOutcome() if not _are_times(
            *(value.speedup, value.over_base),
            *(*value.best_us.values(), *value.default_us.values()),
        ):
            yield f"a round came to {value.speedup}x"
    yield from _event_problems(value)


def _event_problems(value: object) -> Iterator[str]:
    if isinstance(value, Event) and not 0 <= value.round <= MOST_ROUNDS:
        yield f"a round is {value.round}"
    match value:
        case AnswerAccepted(_, attempt) | CandidateMade(_, _, attempt) if attempt < 1:
            yield f"an attempt is {attempt}"
        case SearchEnded(trials=trials) if trials < 0:
            yield f"a search ended after {trials} trials"
        case Said(_, entry) if not _is_entry(entry):
            yield f"an entry of a transcript is {str(entry)[:60]!r}"


def _is_entry(entry: Mapping[str, Any]) -> bool:
    kind, usage = entry.get("type"), entry.get("usage")
    texts = all(isinstance(entry.get(name) or "", str) for name in _TEXTS)
    cost = isinstance(entry.get("cost") or 0.0, int | float)
    counted = usage is None or (
        isinstance(usage, dict)
        and usage.keys() <= _USAGE
        and all(isinstance(count, int) and count >= 0 for count in usage.values())
    )
    said = kind not in ("message", "reply") or _is_message(entry.get("message"))
    return isinstance(kind, str) and texts and cost and counted and said


def _is_message(message: object) -> bool:
    match message:
        case {"role": str(), "content": str() | None, **more}:
            calls = more.get("tool_calls") or []
            return isinstance(calls, list) and all(map(_is_call, calls))
    return False


def _is_call(call: object) -> bool:
    match call:
        case {"id": str(), "function": {"name": str(), "arguments": str() | None}}:
            return True
    return False


def _is_whole(comparison: Comparison) -> bool:
    columns = 1 + len(comparison.finalists) + len(comparison.peers)
    rows = all(len(row) == columns and _are_times(*row) for row in comparison.rounds)
    some = bool(comparison.rounds) or not comparison.finalists
    once = (comparison.isolated_us, comparison.alone_us)
    known = all(len(row) in (0, columns) and _are_times(*row) for row in once)
    raced = len(comparison.raced_us) in (0, len(comparison.finalists))
    known = known and raced and _are_times(*comparison.raced_us)
    return some and rows and known and comparison.production in ("", *comparison.peers)


def _is_name(text: str) -> bool:
    # It becomes part of files' names, and of lines on a terminal.
    return text.isprintable() and "/" not in text and 0 < len(text) < 200 and text[0] != "."


def _is_number(text: str) -> bool:
    try:
        return 0.0 <= float(text) < inf
    except ValueError:
        return False


def _are_times(*values: float | None) -> bool:
    return all(value is None or 0.0 < value < _LONGEST_US for value in values)
