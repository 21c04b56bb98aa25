"""From a profile to what an agent reads of it: what bounds the kernel, and the findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points

from tuner.analysis.base import Bottleneck, Profile, Rule
from tuner.analysis.diagnosis import execution, memory
from tuner.analysis.roofline import bound_of, room
from tuner.model.trial import Finding, rank_findings

_ALL = frozenset(Bottleneck)
_RUNS_LONG = _ALL - {Bottleneck.LAUNCH}
_MOVES_DATA = frozenset({Bottleneck.MEMORY, Bottleneck.LATENCY, Bottleneck.TAIL})

# In the order in which equally weighty findings are listed.
RULES: tuple[Rule, ...] = (
    Rule("redundant_traffic", _MOVES_DATA, memory.redundant_traffic),
    Rule("tail", _ALL, execution.tail),
    Rule("launch_overhead", _ALL - {Bottleneck.COMPUTE}, execution.launch_overhead),
    Rule("block_rate", _RUNS_LONG, execution.block_rate),
    Rule("register_spills", _ALL, memory.register_spills),
    Rule("occupancy", _RUNS_LONG, execution.occupancy),
    Rule("cliff", _RUNS_LONG, execution.cliff),
    Rule("coalescing", _MOVES_DATA, memory.coalescing),
    Rule("vector_width", _MOVES_DATA, memory.vector_width),
    Rule("warp_stalls", _RUNS_LONG, execution.warp_stalls),
    Rule("barrier_stalls", _RUNS_LONG, execution.barrier_stalls),
    Rule("bank_conflicts", _RUNS_LONG, memory.bank_conflicts),
    Rule(
        "tensor_cores",
        frozenset({Bottleneck.COMPUTE, Bottleneck.LATENCY, Bottleneck.TAIL}),
        execution.tensor_cores,
    ),
    Rule("serialized_wgmma", _ALL, execution.serialized_wgmma),
    Rule("divergence", _RUNS_LONG, execution.divergence),
    Rule("l2_hit_rate", frozenset({Bottleneck.MEMORY, Bottleneck.LATENCY}), memory.l2_hit_rate),
    Rule("instruction_mix", _RUNS_LONG, execution.instruction_mix),
)

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
        return _problem(point, f"cannot be loaded: {_describe_error(error)}")
    if not isinstance(rule, Rule):
        return _problem(point, f"is of type {type(rule).__name__}, not tuner.analysis.base.Rule")
    if rule.name in taken:
        return _problem(point, f"has the name of another, {rule.name!r}")
    return replace(rule, find=_guard_finder(point, rule.find))


def _guard_finder(
    point: EntryPoint, find: Callable[[Profile], Finding | None]
) -> Callable[[Profile], Finding | None]:
    def find_safely(profile: Profile) -> Finding | None:
        try:
            # What it really returns is as unknown as what it does.
            returned: object = find(profile)
        except Exception as error:  # noqa: BLE001 - others' code, which may do anything
            return _problem(point, f"failed: {_describe_error(error)}")
        if returned is None:
            return None
        if not isinstance(returned, Finding):
            return _problem(
                point, f"returned a value of type {type(returned).__name__}, not a Finding"
            )
        if not (math.isfinite(returned.weight) and 0.0 <= returned.weight <= 1.0):
            return _problem(point, f"returned a weight of {returned.weight}, not of 0 to 1")
        return returned

    return find_safely


def _problem(point: EntryPoint, what: str) -> Finding:
    package = "an unknown package" if point.dist is None else point.dist.name
    return Finding(
        topic=point.name,
        text=f"The diagnosis `{point.name} = {point.value}` of {package} {what}.",
        advice=f"Nothing of the kernel is wrong: repair or uninstall {package}.",
        value=0.0,
    )


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def diagnose(
    profile: Profile, rules: Iterable[Rule] | None = None
) -> tuple[Bottleneck, tuple[Finding, ...]]:
    """Classify a profile, run the rules that fit, and keep the weightiest findings.

    `rules` are by default the built-in ones and those of installed plug-ins. Weights are scaled by
    the share of the time that can be saved at all, so that at the roofline nothing weighs much.
    """
    problems: tuple[Finding, ...] = ()
    if rules is None:
        others, problems = load()
        rules = (*RULES, *others)
    bound = bound_of(profile)
    findings = [rule.find(profile) for rule in rules if bound in rule.bounds]
    left = room(profile)
    weighed = [replace(f, weight=f.weight * left) for f in findings if f is not None]
    return bound, rank_findings((*weighed, *problems))
