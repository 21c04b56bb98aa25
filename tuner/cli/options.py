"""Readers for options with a syntax of their own: durations, searchers, `NAME=VALUE`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

SEARCHERS = ("auto", "exhaustive", "random", "optuna")
STRATEGIES = "kernel_tuner:"
_UNIT_SECONDS = (3600.0, 60.0, 1.0)
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def seed(text: str) -> int:
    """Read a seed that every searcher takes."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise click.BadParameter(f"{text!r} is not a whole number from 0 to {2**32 - 1}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time such as `90s`, `5m` or `1h30m`."""
    match = _DURATION.fullmatch(text.strip())
    total = 0.0
    if match is not None:
        parts = zip(match.groups(), _UNIT_SECONDS, strict=True)
        total = sum(float(number) * unit for number, unit in parts if number)
    if total <= 0:
        raise click.BadParameter(f"{text!r} is not a time; write it as 90s, 5m or 1h30m")
    return total


def searcher(text: str) -> str:
    """Check a searcher's name; a strategy is checked where Kernel Tuner is loaded."""
    if text in SEARCHERS or (text.startswith(STRATEGIES) and text != STRATEGIES):
        return text
    raise click.BadParameter(f"{text!r} is none of {', '.join(SEARCHERS)}, {STRATEGIES}<strategy>")


def folder(text: str) -> Path:
    """Read a folder's name; an empty one, as of an unset variable, is not the current folder."""
    if not text.strip():
        raise click.BadParameter("no folder is named; `.` is the current one")
    return Path(text)


def assignment(text: str) -> tuple[str, str]:
    """Split `NAME=VALUE` at its first equals sign."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def unique(pairs: tuple[tuple[str, str], ...], what: str) -> Mapping[str, str]:
    """Return the pairs as a mapping; a name given twice is a usage error."""
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise click.UsageError(f"{what} {', '.join(repeated)} is given more than once")
    return dict(pairs)
