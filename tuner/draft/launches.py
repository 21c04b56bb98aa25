"""The launches of a draft: the baseline's with numbers, the template's with parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tuner.draft.choices import Choice, Names
from tuner.draft.host_launch import HostLaunch
from tuner.draft.proposals import Proposals
from tuner.draft.translate import Scope, translate
from tuner.source.text import number

_INTEGERS = ("int32", "uint32", "int64", "uint64")
_VARIABLE = re.compile(r"(?<![\w.:>])[A-Za-z_]\w*(?!\w|\s*(?:\(|::|<|\.|->))")


@dataclass(frozen=True, slots=True)
class LaunchDraft:
    """A launch as expressions; None where only a person can say, `hints` what the source says."""

    kernel: str | None
    grid: tuple[str, ...] | None
    block: tuple[str, ...] | None
    shared_memory: str | None
    hints: Mapping[str, str] = field(default_factory=dict)


def sizes(launch: HostLaunch) -> dict[str, str]:
    """Map what are likely the problem's sizes to names of axes.

    They are the kernel's whole-number parameters, and host variables that only the grid knows.
    """
    names = Names(())
    axes = {
        p.name: names.axis(p.name)
        for p in launch.kernel.parameters
        if p.name and not p.pointers and p.dtype in _INTEGERS
    }
    for text in launch.site.grid if launch.site is not None else ():
        scope = _scope(launch, axes, ())
        if translate(text, scope) is not None:
            continue
        unknown = [n for n in _VARIABLE.findall(text) if translate(n, scope) is None]
        if translate(text, replace(scope, values={**scope.values, **{n: n for n in unknown}})):
            axes |= {name: names.axis(name) for name in unknown}
    return axes


def baseline_launch(launch: HostLaunch, axes: Mapping[str, str]) -> LaunchDraft:
    """Draft the launch of the source as it is; `axes` maps kernel parameters to axes."""
    return _launch(launch, _name(launch, launch.instance), _scope(launch, axes, ()), ())


def template_launch(
    launch: HostLaunch, axes: Mapping[str, str], proposals: Proposals
) -> LaunchDraft:
    """Draft the launch of the template: proposed constants are parameters in it."""
    scope = _scope(launch, axes, proposals.choices)
    drafted = _launch(launch, _name(launch, proposals.instance), scope, proposals.choices)
    if launch.site is not None or not (block := _own_block(proposals.choices)):
        return drafted
    return replace(drafted, block=block)


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


def _scope(launch: HostLaunch, axes: Mapping[str, str], choices: tuple[Choice, ...]) -> Scope:
    source, site = launch.source, launch.site
    values = dict(axes)
    if site is not None:
        passed = zip(launch.kernel.parameters, site.arguments, strict=False)
        values |= {
            text: axes[p.name] for p, text in passed if p.name in axes and number(text) is None
        }
    definitions = {c.name: c.value for c in source.constants}
    for parameter, text in zip(launch.kernel.template, launch.instance or (), strict=False):
        definitions.setdefault(parameter.name, text)
    definitions |= site.definitions if site is not None else {}
    named = {choice.origin: choice for choice in choices if choice.origin is not None}
    return Scope(
        values=values | {origin: choice.name for origin, choice in named.items()},
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
