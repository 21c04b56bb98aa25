"""The launches of a draft: the baseline's with numbers, the template's with parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tuner.draft.axes import Axes
from tuner.draft.choices import Choice
from tuner.draft.host_values import HostLaunch
from tuner.draft.proposals import Proposals
from tuner.draft.translate import Scope, translate
from tuner.source.syntax import number


@dataclass(frozen=True, slots=True)
class LaunchDraft:
    """A launch as expressions; None where only a person can say, `hints` what the source says."""

    kernel: str | None
    grid: tuple[str, ...] | None
    block: tuple[str, ...] | None
    shared_memory: str | None
    hints: Mapping[str, str] = field(default_factory=dict)


def plain_scope(launch: HostLaunch) -> Scope:
    """Say what the names in the launch mean before any of them is an axis."""
    return _scope(launch, Axes({}), ())


def baseline_launch(launch: HostLaunch, axes: Axes) -> LaunchDraft:
    """Draft the launch of the source as it is."""
    return _launch(launch, _name(launch, launch.instance), _scope(launch, axes, ()), ())


def template_launch(launch: HostLaunch, axes: Axes, proposals: Proposals) -> LaunchDraft:
    """Draft the launch of the template: proposed constants are parameters in it."""
    scope = _scope(launch, axes, proposals.choices)
    drafted = _launch(launch, _name(launch, proposals.instance), scope, proposals.choices)
    if launch.site is not None or not (block := _own_block(proposals.choices)):
        return drafted
    return replace(drafted, block=block)


def tuned_extents(launch: HostLaunch, axes: Axes, choices: tuple[Choice, ...]) -> LaunchDraft:
    """Draft the extents alone of the template's launch."""
    return _launch(launch, None, _scope(launch, axes, choices), choices)


def exact_divisions(launch: HostLaunch, choices: tuple[Choice, ...]) -> Iterator[str]:
    """Yield constraints for parameters that the source divides by one another without rest."""
    origins = {choice.origin: choice for choice in choices if choice.origin is not None}
    spans = launch.source.reachable([launch.kernel])
    texts = [launch.source.masked[start:end] for start, end in spans]
    if launch.site is not None:
        texts += [*launch.site.grid, *launch.site.block, *launch.site.definitions.values()]
    found = {
        (match[1], match[2])
        for text in texts
        for match in re.finditer(r"\b([A-Za-z_]\w*)\s*/\s*([A-Za-z_]\w*)\b", text)
        if match[1] in origins and match[2] in origins
    }
    for dividend, divisor in sorted(found):
        a, b = origins[dividend], origins[divisor]
        if isinstance(a.default, int) and isinstance(b.default, int) and a.default % b.default == 0:
            yield f"{a.name} % {b.name} == 0"


def _own_block(choices: tuple[Choice, ...]) -> tuple[str, ...]:
    return next(((choice.name,) for choice in choices if choice.is_block), ())


def _name(launch: HostLaunch, instance: tuple[str, ...] | None) -> str | None:
    name = launch.kernel.qualified_name
    if not launch.kernel.template:
        return name
    if instance is None:
        return None
    return f"{name}<{', '.join(_argument(text, launch) for text in instance)}>"


def _argument(text: str, launch: HostLaunch) -> str:
    value = launch.value(text)
    return value if number(value) is not None else text


def _scope(launch: HostLaunch, axes: Axes, choices: tuple[Choice, ...]) -> Scope:
    source, site = launch.source, launch.site
    definitions = {c.name: c.value for c in source.constants}
    for parameter, text in zip(launch.kernel.template, launch.instance or (), strict=False):
        definitions.setdefault(parameter.name, text)
    definitions |= site.definitions if site is not None else {}
    named = {choice.origin: choice for choice in choices if choice.origin is not None}
    return Scope(
        values=dict(axes.texts(launch)) | {origin: choice.name for origin, choice in named.items()},
        definitions=definitions,
        types=launch.types(),
        defaults={c.name: c.default for c in choices if isinstance(c.default, int)},
    )


def _launch(
    launch: HostLaunch, name: str | None, scope: Scope, choices: tuple[Choice, ...]
) -> LaunchDraft:
    site = launch.site
    if site is None:
        dynamic = any(
            array.dynamic and start <= array.at < end
            for array in launch.source.shared
            for start, end in launch.source.reachable([launch.kernel])
        )
        return LaunchDraft(name, None, None, None if dynamic else "0")
    hints = {
        "grid": ", ".join(site.grid),
        "block": ", ".join(site.block),
        "shared_memory": launch.followed(site.shared),
    }
    shared = translate(site.shared, _with_literals(scope, choices, 0))
    grid, block = (_extents(texts, scope, choices) for texts in (site.grid, site.block))
    return LaunchDraft(name, grid, block, shared, hints)


def _extents(
    texts: tuple[str, ...], scope: Scope, choices: tuple[Choice, ...]
) -> tuple[str, ...] | None:
    translated = [
        translate(text, _with_literals(scope, choices, axis)) for axis, text in enumerate(texts[:3])
    ]
    known = tuple(text for text in translated if text is not None)
    while len(known) > 1 and known[-1] == "1":
        known = known[:-1]
    return known if translated and None not in translated else None


def _with_literals(scope: Scope, choices: tuple[Choice, ...], axis: int) -> Scope:
    # a number in the launch that equals the block's size is taken to be the block's size
    sized = sorted(choices, key=lambda choice: choice.axis == axis)
    literals = {
        choice.default: choice.name
        for choice in sized
        if (choice.is_block or choice.axis == axis) and isinstance(choice.default, int)
    }
    return replace(scope, literals=literals)
