"""From rows to records: a store may come from anywhere, so nothing in it is taken on trust."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from tuner.expressions import Value
from tuner.kernel import Workload
from tuner.knowledge.records import PastConfig, PastSearch, PastWorkload
from tuner.space import Config
from tuner.trial import Status

Row = Mapping[str, Any]
# Longer text is no config of ours, and not worth its parsing.
MOST_CHARACTERS = 20_000
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def search_of(row: Row, workloads: Iterable[PastWorkload]) -> PastSearch | None:
    """Read a search; None where the row makes no sense."""
    operators, parameters = _json(row["operators"]), _json(row["parameters"])
    if not isinstance(operators, dict) or not isinstance(parameters, list):
        return None
    if not all(isinstance(text, str) for text in (*operators.values(), *parameters)):
        return None
    return PastSearch(
        kernel=_text(row["kernel"]),
        operators=operators,
        device=_text(row["device"]),
        architecture=_text(row["architecture"]),
        candidate=_text(row["candidate"]),
        template_sha=_text(row["template_sha"]),
        parameters=tuple(parameters),
        tuner_version=_text(row["tuner_version"]),
        created=_text(row["created"]),
        state=_text(row["state"]),
        workloads=tuple(workloads),
    )


def workload_of(row: Row, configs: Iterable[PastConfig]) -> PastWorkload | None:
    """Read what was found on a workload; None where the row makes no sense."""
    axes = _pairs(row["axes"])
    if not axes or not all(type(size) is int and size > 0 for _, size in axes):
        return None
    sizes = tuple((name, int(size)) for name, size in axes)
    return PastWorkload(Workload(sizes), time_of(row["baseline_us"]), tuple(configs))


def config_of(row: Row) -> PastConfig | None:
    """Read a config; None where the row makes no sense, such as a time of 0."""
    values, time_us = _pairs(row["config"]), time_of(row["time_us"])
    if not values or row["status"] not in set(Status):
        return None
    status = Status(row["status"])
    if (status is Status.CORRECT) is (time_us is None):
        return None
    return PastConfig(Config.of(values), status, time_us)


def time_of(value: object) -> float | None:
    """Read a time in microseconds; None where it can be none."""
    if isinstance(value, int | float) and isfinite(value) and value > 0:
        return float(value)
    return None


def _pairs(text: object) -> tuple[tuple[str, Value], ...]:
    pairs = _json(text)
    if not isinstance(pairs, list):
        return ()
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            return ()
        if not isinstance(pair[1], bool | int | float | str):
            return ()
    return tuple((name, value) for name, value in pairs)


def _json(text: object) -> object:
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(value: object) -> str:
    """Keep what a terminal would take for a command out of what people are shown."""
    return _UNPRINTABLE.sub("?", str(value))
