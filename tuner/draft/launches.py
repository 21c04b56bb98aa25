"""What the launch means in a search space: which names are axes, and its grid, block and memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.draft.choices import PROBLEM_SIZE, Names, Proposals, TunableConstant, why_fixed
from tuner.draft.host_values import INTEGERS, Host, HostLaunch, Number, names_behind, plain
from tuner.draft.translate import Scope, translate
from tuner.source import Constant
from tuner.source.facts import IDENTIFIER
from tuner.source.syntax import number

_VARIABLE = re.compile(r"(?<![\w.:>])[A-Za-z_]\w*(?!\w|\s*(?:\(|::|<|\.|->))")


@dataclass(frozen=True, slots=True)
class Axes:
    """Names of the C++ source that are axes, with the axes' names.

    `fixed` are constants of the source among them: their one size cannot be changed from outside.
    """

    names: Mapping[str, str]
    fixed: Mapping[str, Constant] = field(default_factory=dict)

    def texts(self, launch: HostLaunch) -> dict[str, str]:
        """Map texts of the launch's own function to axes: what it passes, and what it knows."""
        return dict(self.names) | {
            form: self.names[name]
            for name, text in launch.passed.items()
            if name in self.names and number(text) is None
            for form in (text, plain(text))
        }


def axes_of(launch: HostLaunch, hosts: Sequence[Host]) -> Axes:
    """Find the axes: whole-number parameters, host variables of the grid, else fixed sizes."""
    names = Names()
    found = {
        p.name: names.axis(p.name)
        for place, p in enumerate(launch.kernel.parameters)
        if p.name and not p.pointers and p.dtype in INTEGERS and _is_size(launch, hosts, place)
    }
    found |= {name: names.axis(name) for name in _sized_rows(launch, Axes(found))}
    found |= _of_the_grid(launch, _scope(launch, Axes(found), ()), names)
    if found:
        return Axes(found)
    fixed = {constant.name: constant for constant in _fixed(launch)}
    return Axes({name: names.axis(name) for name in fixed}, fixed)


def numbers_of(launch: HostLaunch, axes: Axes, host: Host) -> dict[str, Number]:
    """Map axes to the numbers they have on one way to the launch, as far as the source says."""
    found, passed = {}, launch.passed
    for name, axis in axes.names.items():
        known = host.number(passed.get(name, name))
        if known is not None and known.value > 0:
            found[axis] = known
    return found


def _is_size(launch: HostLaunch, hosts: Sequence[Host], place: int) -> bool:
    # an offset of 0 is passed as a whole number too
    arguments = launch.site.arguments if launch.site is not None else ()
    if place >= len(arguments):
        return True
    known = [host.number(arguments[place]) for host in hosts]
    return all(value is None or value.value > 0 for value in known)


def _of_the_grid(launch: HostLaunch, scope: Scope, names: Names) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in launch.site.grid if launch.site is not None else ():
        own = replace(scope, values={**scope.values, **found})
        if translate(text, own) is not None:
            continue
        unknown = [n for n in _VARIABLE.findall(text) if translate(n, own) is None]
        if translate(text, replace(own, values={**own.values, **{n: n for n in unknown}})):
            found |= {name: names.axis(name) for name in unknown}
    return found


def _sized_rows(launch: HostLaunch, axes: Axes) -> Iterator[str]:
    # `const int rows = 1024;`, where both the grid and an array have so many
    known, grid = axes.texts(launch), launch.site.grid if launch.site is not None else ()
    sized = launch.problem_sizes & names_behind(grid, launch.definitions)
    for name, value in launch.definitions.items():
        if name in sized and name not in known and number(value) is not None:
            yield name


def _fixed(launch: HostLaunch) -> Iterator[Constant]:
    source, sized = launch.source, launch.problem_sizes
    reached = source.reachable([launch.kernel])
    used = {name for span in reached for name in IDENTIFIER.findall(source.masked, *span)}
    often = [constant.name for constant in source.constants]
    for constant in source.constants:
        value = constant.number
        if constant.name not in used | launch.names or often.count(constant.name) > 1:
            continue
        if value is None or isinstance(value, bool) or value < 1:
            continue
        if constant.name in sized or why_fixed(constant.name, value) == PROBLEM_SIZE:
            yield constant


@dataclass(frozen=True, slots=True)
class LaunchDraft:
    """A launch as expressions; None where only a person can say, `hints` what the source says."""

    kernel: str | None
    grid: tuple[str, ...] | None
    block: tuple[str, ...] | None
    shared_memory: str | None
    hints: Mapping[str, str] = field(default_factory=dict)


def baseline_launch(launch: HostLaunch, axes: Axes) -> LaunchDraft:
    """Draft the launch of the source as it is."""
    return _launch(launch, axes, launch.instance, ())


def template_launch(launch: HostLaunch, axes: Axes, proposals: Proposals) -> LaunchDraft:
    """Draft the launch of the template: proposed constants are parameters in it."""
    drafted = _launch(launch, axes, proposals.instance, proposals.choices)
    own_block = next((choice.name for choice in proposals.choices if choice.is_block), None)
    if launch.site is not None or own_block is None:
        return drafted
    return replace(drafted, block=(own_block,))


def exact_divisions(launch: HostLaunch, choices: Sequence[TunableConstant]) -> Iterator[str]:
    """Yield constraints for parameters that the source divides by one another without rest."""
    origins = {choice.origin: choice for choice in choices if choice.origin is not None}
    spans = launch.source.reachable([launch.kernel])
    texts = [launch.source.masked[start:end] for start, end in spans]
    if launch.site is not None:
        texts += [*launch.site.grid, *launch.site.block, *launch.definitions.values()]
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


def _name(launch: HostLaunch, instance: tuple[str, ...] | None) -> str | None:
    name = launch.kernel.qualified_name
    if not launch.kernel.template:
        return name
    if instance is None:
        return None
    values = ((launch.value(text), text) for text in instance)
    arguments = (value if number(value) is not None else text for value, text in values)
    return f"{name}<{', '.join(arguments)}>"


def _scope(launch: HostLaunch, axes: Axes, choices: Sequence[TunableConstant]) -> Scope:
    return Scope(
        values=axes.texts(launch) | {c.origin: c.name for c in choices if c.origin is not None},
        definitions={**launch.constants, **launch.definitions},
        types=launch.types(),
        defaults={c.name: c.default for c in choices if isinstance(c.default, int)},
    )


def _launch(
    launch: HostLaunch,
    axes: Axes,
    instance: tuple[str, ...] | None,
    choices: Sequence[TunableConstant],
) -> LaunchDraft:
    name, scope, site = _name(launch, instance), _scope(launch, axes, choices), launch.site
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
    texts: Sequence[str], scope: Scope, choices: Sequence[TunableConstant]
) -> tuple[str, ...] | None:
    translated = [
        translate(text, _with_literals(scope, choices, axis)) for axis, text in enumerate(texts[:3])
    ]
    known = tuple(text for text in translated if text is not None)
    while len(known) > 1 and known[-1] == "1":
        known = known[:-1]
    return known if translated and None not in translated else None


def _with_literals(scope: Scope, choices: Sequence[TunableConstant], axis: int) -> Scope:
    # a number in the launch that equals the block's size is taken to be the block's size
    sized = sorted(choices, key=lambda choice: choice.axis == axis)
    literals = {
        choice.default: choice.name
        for choice in sized
        if (choice.is_block or choice.axis == axis) and isinstance(choice.default, int)
    }
    return replace(scope, literals=literals)
