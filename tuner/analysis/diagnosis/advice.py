"""What diagnoses advise, from `advice.toml` beside this."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import TypedDict

from tuner.model.trial import Finding


class Stall(TypedDict):
    waiting_for: str
    advice: str


class Overhead(TypedDict):
    classes: list[str]
    advice: str


_WORDS = tomllib.loads(files(__package__).joinpath("advice.toml").read_text("utf-8"))
TOPICS: Mapping[str, str] = _WORDS["topics"]
OCCUPANCY: Mapping[str, str] = _WORDS["occupancy"]
STALLS: Mapping[str, Stall] = _WORDS["stalls"]
CLIFFS: Mapping[str, str] = _WORDS["cliffs"]
OVERHEADS: Mapping[str, Overhead] = _WORDS["overheads"]


def finding(
    topic: str,
    text: str,
    measured: tuple[float, str],
    weight: float,
    line: int | None = None,
    advice: str | None = None,
) -> Finding:
    """Make a finding of a value in its unit, with its topic's advice unless another is given."""
    value, unit = measured
    return Finding(topic, text, advice or TOPICS[topic], value, unit, weight, line)
