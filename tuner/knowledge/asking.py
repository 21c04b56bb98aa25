"""Which configs of past searches a new one tries first.

What is known of the same device comes first, then of the same architecture, then of the same
choices of the operator, then of a space with the same parameters, then of the nearest shape. The
best configs of several such groups take turns, so that no one of them can fill the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.expressions import Value
from tuner.kernel import Workload
from tuner.knowledge.records import PastSearch, PastWorkload
from tuner.plan import distance
from tuner.space import Config, Parameter, SearchSpace
from tuner.trial import Status


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be searched, and on what; `architecture` is the compile target, `sm_90a`."""

    space: SearchSpace
    operators: Mapping[str, str]
    device: str
    architecture: str
    template_sha: str


@dataclass(frozen=True, slots=True)
class Seed:
    """A config to try, and the device and the workload that it was good on."""

    config: Config
    device: str
    workload: str


@dataclass(frozen=True, slots=True, order=True)
class _Kinship:
    """How near something known is to what is asked: the smaller, the nearer."""

    other_device: bool
    other_architecture: bool
    other_operators: bool
    other_parameters: bool
    distance: float
    other_template: bool
    device: str
    workload: str

    @property
    def same(self) -> bool:
        """Whether it is the very thing that is asked for."""
        hardware = self.other_device or self.other_architecture
        kernel = self.other_operators or self.other_parameters or self.other_template
        return not (hardware or kernel or self.distance)


@dataclass(frozen=True, slots=True)
class _Known:
    """The last that is known of a config; `relative` is its time by the baseline's, 0 if failed."""

    status: Status
    relative: float


_Groups = dict[_Kinship, dict[Config, _Known]]


def seeds(
    known: Sequence[PastSearch],
    question: Question,
    workload: Workload,
    *,
    limit: int,
    valid: Callable[[Config], bool],
) -> tuple[Seed, ...]:
    """Choose at most `limit` configs for a workload, the most promising first.

    `known` is of one kernel, oldest first. A config that has a parameter or a value which the
    space lacks is passed over; a parameter that is new takes the default's value.
    """
    groups = _groups(known, question, workload)
    failed = {
        config
        for kinship, found in groups.items()
        for config, one in found.items()
        if kinship.same and one.status is not Status.CORRECT
    }
    chosen: dict[Config, Seed] = {}
    for kinship, config in _taking_turns(groups):
        if len(chosen) >= limit:
            break
        if config not in chosen and config not in failed and valid(config):
            chosen[config] = Seed(config, kinship.device, kinship.workload)
    return tuple(chosen.values())


def fitted(config: Mapping[str, Value], space: SearchSpace) -> Config | None:
    """Write a config of an earlier space as one of this; None where that can't be."""
    values = {**(space.default or {}), **config}
    if set(values) != set(space.names):
        return None
    found = {p.name: _own(values[p.name], p) for p in space.parameters}
    chosen = {name: value for name, value in found.items() if value is not None}
    return Config.of(chosen) if len(chosen) == len(found) else None


def _own(given: Value, parameter: Parameter) -> Value | None:
    for value in parameter.values:
        # To Python `true` and 1 are equal.
        if value == given and isinstance(value, bool) == isinstance(given, bool):
            return value
    return None


def _groups(known: Sequence[PastSearch], question: Question, workload: Workload) -> _Groups:
    """Put together what is known of the same shape and device; the newest run has the last word."""
    groups: _Groups = {}
    axes = {name for name, _ in workload.axes}
    for search in known:
        for past in search.workloads:
            if {name for name, _ in past.workload.axes} == axes:
                group = groups.setdefault(_kinship(search, past, question, workload), {})
                group.update(_configs(past, question.space))
    return groups


def _configs(past: PastWorkload, space: SearchSpace) -> Iterator[tuple[Config, _Known]]:
    timed = [one.time_us for one in past.configs if one.time_us is not None]
    # The baseline is the same in all runs; the clocks of two need not be.
    unit_us = past.baseline_us or min(timed, default=1.0)
    for one in past.configs:
        config = fitted(one.config, space)
        if config is not None:
            yield config, _Known(one.status, (one.time_us or 0.0) / unit_us)


def _kinship(
    search: PastSearch, past: PastWorkload, question: Question, workload: Workload
) -> _Kinship:
    return _Kinship(
        other_device=search.device != question.device,
        other_architecture=search.architecture != question.architecture,
        other_operators=dict(search.operators) != dict(question.operators),
        other_parameters=set(search.parameters) != set(question.space.names),
        distance=distance(workload, past.workload),
        other_template=search.template_sha != question.template_sha,
        device=search.device,
        workload=past.workload.key,
    )


def _taking_turns(groups: _Groups) -> Iterator[tuple[_Kinship, Config]]:
    """Yield the nearest group's best, then its second and the next group's best, and so on."""
    ranked = [(kinship, _fastest(groups[kinship])) for kinship in sorted(groups)]
    longest = max((len(configs) for _, configs in ranked), default=0)
    for diagonal in range(len(ranked) + longest):
        for number, (kinship, configs) in enumerate(ranked[: diagonal + 1]):
            if diagonal - number < len(configs):
                yield kinship, configs[diagonal - number]


def _fastest(found: Mapping[Config, _Known]) -> list[Config]:
    timed = [(one.relative, config) for config, one in found.items() if one.relative]
    return [config for _, config in sorted(timed, key=lambda pair: pair[0])]
