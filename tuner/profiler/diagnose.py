"""From a profile to what an agent reads of it: what bounds the kernel, and the findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tuner.findings import Finding, ranked
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.plugins import load
from tuner.profiler.roofline import roofline, room
from tuner.profiler.rules import RULES


def diagnose(
    profile: Profile, rules: Iterable[Rule] | None = None
) -> tuple[Kind, tuple[Finding, ...]]:
    """Classify a profile, run the rules that fit, and keep the weightiest findings.

    `rules` are by default the built-in ones and those of installed plug-ins. Weights are scaled by
    the share of the time that can be saved at all, so that at the roofline nothing weighs much.
    """
    problems: tuple[Finding, ...] = ()
    if rules is None:
        others, problems = load()
        rules = (*RULES, *others)
    kind = roofline(profile).kind
    found = [rule.find(profile) for rule in rules if kind in rule.kinds]
    left = room(profile)
    weighed = [replace(one, weight=one.weight * left) for one in found if one is not None]
    return kind, ranked((*weighed, *problems))
