"""The sizes of a problem: which names of the source are axes, and what numbers host code gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tuner.draft.choices import PROBLEM_SIZE, Names, why_fixed
from tuner.draft.host_values import Host, HostLaunch, Number, plain
from tuner.draft.translate import Scope, translate
from tuner.source import Constant, SourceFile
from tuner.source.accesses import Assigned
from tuner.source.facts import IDENTIFIER
from tuner.source.launches import allocations_in
from tuner.source.syntax import number

_INTEGERS = ("int32", "uint32", "int64", "uint64")
_VARIABLE = re.compile(r"(?<![\w.:>])[A-Za-z_]\w*(?!\w|\s*(?:\(|::|<|\.|->))")


@dataclass(frozen=True, slots=True)
class Axes:
    """Names of the C++ source that are axes, with the axes' names.

    `fixed` are constants of the source among them: their one size cannot be changed from outside.
    """

    names: Mapping[str, str]
    fixed: Mapping[str, Constant] = field(default_factory=dict)

    def texts(self, launch: HostLaunch) -> Mapping[str, str]:
        """Map texts of the launch's own function to axes: what it passes, and what it knows."""
        site = launch.site
        passed = zip(launch.kernel.parameters, site.arguments if site else (), strict=False)
        found = {
            form: self.names[parameter.name]
            for parameter, text in passed
            if parameter.name in self.names and number(text) is None
            for form in (text, plain(text))
        }
        return dict(self.names) | found


def axes_of(launch: HostLaunch, hosts: tuple[Host, ...], scope: Scope) -> Axes:
    """Find the axes: whole-number parameters, host variables of the grid, else fixed sizes.

    `scope` is what the launch's expressions mean without any axis.
    """
    names = Names(())
    found = {
        p.name: names.axis(p.name)
        for place, p in enumerate(launch.kernel.parameters)
        if p.name and not p.pointers and p.dtype in _INTEGERS and _is_size(launch, hosts, place)
    }
    found |= {name: names.axis(name) for name in _sized_rows(launch, Axes(found))}
    found |= _of_the_grid(launch, replace(scope, values=Axes(found).texts(launch)), names)
    if found:
        return Axes(found)
    fixed = {constant.name: constant for constant in _fixed(launch)}
    return Axes({name: names.axis(name) for name in fixed}, fixed)


def numbers_of(launch: HostLaunch, axes: Axes, host: Host) -> dict[str, Number]:
    """Map axes to the numbers they have on one way to the launch, as far as the source says."""
    site, found = launch.site, {}
    passed = {}
    if site is not None:
        names = (parameter.name for parameter in launch.kernel.parameters)
        passed = dict(zip(names, site.arguments, strict=False))
    for name, axis in axes.names.items():
        known = host.number(passed.get(name, name))
        if known is not None and known.value > 0:
            found[axis] = known
    return found


def _is_size(launch: HostLaunch, hosts: tuple[Host, ...], place: int) -> bool:
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
    definitions = launch.site.definitions if launch.site is not None else {}
    sized = problem_sizes(launch) & launch.closure(launch.site.grid if launch.site else ())
    for name, value in definitions.items():
        if name in sized and name not in axes.texts(launch) and number(value) is not None:
            yield name


def _fixed(launch: HostLaunch) -> Iterator[Constant]:
    source: SourceFile = launch.source
    reached = source.reachable([launch.kernel])
    used = {name for span in reached for name in IDENTIFIER.findall(source.masked, *span)}
    often = [constant.name for constant in source.constants]
    sized = problem_sizes(launch)
    for constant in source.constants:
        value = constant.number
        if constant.name not in used | launch.names or often.count(constant.name) > 1:
            continue
        if value is None or isinstance(value, bool) or value < 1:
            continue
        if constant.name in sized or why_fixed(constant.name, value) == PROBLEM_SIZE:
            yield constant


def problem_sizes(launch: HostLaunch) -> frozenset[str]:
    """List the names that host code gives its arrays their sizes by, or hands to the kernel.

    What the block of the launch depends on is a choice of the source, and left out.
    """
    source, site = launch.source, launch.site
    if site is None:
        return frozenset()
    variables = {name: Assigned(text, 0) for name, text in site.definitions.items()}
    texts = [a.size for a in allocations_in(source, (0, len(source.masked)), variables)]
    passed = zip(launch.kernel.parameters, site.arguments, strict=False)
    texts += [text for parameter, text in passed if parameter.dtype in _INTEGERS]
    return launch.closure(texts) - launch.closure(site.block)
