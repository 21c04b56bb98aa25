"""Diagnoses of other packages: entry points of the group `tuner.diagnosis`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points

from tuner.findings import Finding
from tuner.profiler.base import Profile, Rule
from tuner.profiler.rules import RULES

GROUP = "tuner.diagnosis"


def load() -> tuple[tuple[Rule, ...], tuple[Finding, ...]]:
    """Load the rules of other packages, and say which could not be.

    A plug-in that is broken must not end a run that lasts all night: it costs its own finding, and
    one of weight 0 tells what is wrong with it.
    """
    rules: list[Rule] = []
    problems: list[Finding] = []
    taken = {rule.name for rule in RULES}
    for point in entry_points(group=GROUP):
        loaded = _load(point, taken)
        if isinstance(loaded, Rule):
            taken.add(loaded.name)
            rules.append(loaded)
        else:
            problems.append(loaded)
    return tuple(rules), tuple(problems)


def _load(point: EntryPoint, taken: set[str]) -> Rule | Finding:
    try:
        rule = point.load()
    except Exception as error:  # noqa: BLE001 - others' code, which may do anything
        return _problem(point, f"cannot be loaded: {_told(error)}")
    if not isinstance(rule, Rule):
        return _problem(point, f"is of type {type(rule).__name__}, not tuner.profiler.base.Rule")
    if rule.name in taken:
        return _problem(point, f"has the name of another, {rule.name!r}")
    return replace(rule, find=_guarded(point, rule.find))


def _guarded(
    point: EntryPoint, find: Callable[[Profile], Finding | None]
) -> Callable[[Profile], Finding | None]:
    def guarded(profile: Profile) -> Finding | None:
        try:
            # What it really returns is as unknown as what it does.
            found: object = find(profile)
        except Exception as error:  # noqa: BLE001 - others' code, which may do anything
            return _problem(point, f"failed: {_told(error)}")
        if found is None:
            return None
        if not isinstance(found, Finding):
            return _problem(
                point, f"returned a value of type {type(found).__name__}, not a Finding"
            )
        if not (math.isfinite(found.weight) and 0.0 <= found.weight <= 1.0):
            return _problem(point, f"returned a weight of {found.weight}, not of 0 to 1")
        return found

    return guarded


def _problem(point: EntryPoint, what: str) -> Finding:
    package = "an unknown package" if point.dist is None else point.dist.name
    return Finding(
        topic=point.name,
        text=f"The diagnosis `{point.name} = {point.value}` of {package} {what}.",
        advice=f"Nothing of the kernel is wrong: repair or uninstall {package}.",
        value=0.0,
    )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
