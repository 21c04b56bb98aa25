"""Drafted tensor maps: what host code encodes for a kernel's last parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.extensions.draft.guesses import GUESSED, LIKELY, Evidence
from tuner.extensions.draft.host_path import plain
from tuner.extensions.draft.host_values import HostLaunch
from tuner.extensions.draft.inference import DraftArgument
from tuner.extensions.draft.launches import Axes, scope_of
from tuner.extensions.draft.translate import translate
from tuner.extensions.draft.tunables import TunableConstant
from tuner.model.tensor_maps import DATA_TYPES, SWIZZLES
from tuner.source.facts import IDENTIFIER, KernelFunction, KernelParameter
from tuner.source.syntax import closing, split_list
from tuner.space.blanks import BLANK, MARK

# Of cuTensorMapEncodeTiled: the map, type, rank, address, sizes, strides, box, steps, interleave,
# swizzle, promotion, fill.
_ENCODES = re.compile(r"\b\w*[eE]ncode\w*\s*(?=\()")
_ARGUMENTS = 12
_TYPE, _ADDRESS, _SIZES, _BOX, _SWIZZLE, _PROMOTION = 1, 3, 4, 6, 9, 10
_STORES = re.compile(r"store|global\.shared")
_DTYPES = {name.upper(): name for name in (*DATA_TYPES,)}


@dataclass(frozen=True, slots=True)
class DraftMap:
    """A map as host code encodes it, innermost first as there; without `line` nothing is known.

    `array` is the host's name of what lies at the address.
    """

    parameter: KernelParameter
    array: str = ""
    dtype: str | None = None
    sizes: tuple[str, ...] = ()
    box: tuple[str, ...] = ()
    swizzle: str = "0"
    l2_promotion: str = "0"
    stored: bool = False
    line: int | None = None

    def argument(self, launch: HostLaunch, axes: Axes) -> DraftArgument:
        """Draft the array, which no parameter of the kernel is."""
        role = "output" if self.stored else "input"
        scope = scope_of(launch, axes, ())
        extents = [translate(plain(text), scope) for text in reversed(self.sizes)]
        shape = tuple(extent for extent in extents if extent is not None)
        evidence = (
            Evidence(LIKELY, f"encoded in line {self.line}"),
            Evidence(GUESSED, f"role and shape, of the map {self.parameter.name}"),
        )
        parameter = replace(self.parameter, name=self.array, pointers=1, const=not self.stored)
        complete = shape if shape and len(shape) == len(extents) else None
        return DraftArgument(parameter, self.dtype, role, complete, evidence=evidence)

    def text(self, launch: HostLaunch, axes: Axes, choices: Sequence[TunableConstant]) -> str:
        """Write the map for the search space, with a comment that says how sure it is."""
        if self.line is None:
            blank = f"{{of: {BLANK}, box: [{BLANK}, {BLANK}]}}"
            what = f"the array of the map {self.parameter.name}, its box and swizzle"
            return f"{blank}  {MARK} {what}: no line encodes it plainly"
        scope = scope_of(launch, axes, choices)
        box = [translate(plain(text), scope) or BLANK for text in reversed(self.box)]
        keys = [f"of: {self.array}", f"box: [{', '.join(box)}]", f"swizzle: {self.swizzle}"]
        made = f"{{{', '.join([*keys, f'l2_promotion: {self.l2_promotion}'])}}}"
        blank = f"{MARK} the box's sizes, outermost first; " if BLANK in box else "# "
        return f"{made}  {blank}likely: encoded in line {self.line}"


@dataclass(frozen=True, slots=True)
class Handed:
    """What the launches hand over where they have maps: all arguments, and the kernel's own."""

    arguments: tuple[DraftArgument, ...]
    own: tuple[str, ...] = ()
    maps: tuple[DraftMap, ...] = ()

    def with_arrays(self, kernel: KernelFunction) -> KernelFunction:
        """Show the kernel as if arrays that are reached by maps were parameters, too."""
        if not self.maps:
            return kernel
        return replace(kernel, parameters=tuple(argument.parameter for argument in self.arguments))


def with_maps(
    launch: HostLaunch,
    axes: Axes,
    arguments: tuple[DraftArgument, ...],
    maps: tuple[DraftMap, ...],
) -> Handed:
    """Add the arrays that are reached by maps alone."""
    if not maps:
        return Handed(arguments)
    passed = {text: name for name, text in launch.passed.items()}
    named = tuple(replace(one, array=passed.get(one.array, one.array)) for one in maps)
    own = tuple(argument.parameter.name for argument in arguments)
    fresh = {one.array: one.argument(launch, axes) for one in named if one.line}
    added = (argument for name, argument in fresh.items() if name not in own)
    return Handed((*added, *arguments), own, named)


def split_maps(launch: HostLaunch) -> tuple[HostLaunch, tuple[DraftMap, ...]]:
    """Take the maps that are a kernel's last parameters out of it, and find where they are made."""
    parameters = launch.kernel.parameters
    are_maps = [p.c_type.lower().endswith("tensormap") and not p.pointers for p in parameters]
    count = [*reversed(are_maps), False].index(False)
    if not count:
        return launch, ()
    passed = launch.passed
    calls, masked = list[tuple[int, list[str]]](), launch.source.masked
    for match in _ENCODES.finditer(masked):
        end = closing(masked, match.end())
        pieces = split_list(masked[match.end() + 1 : end - 1]) if end else []
        if len(pieces) == _ARGUMENTS:
            calls.append((match.start(), [text for text, _ in pieces]))
    left, mapped = parameters[:-count], parameters[-count:]
    maps = tuple(_read_map(launch, p, passed.get(p.name, p.name), calls) for p in mapped)
    return replace(launch, kernel=replace(launch.kernel, parameters=left)), maps


def _read_map(
    launch: HostLaunch, parameter: KernelParameter, host: str, calls: list[tuple[int, list[str]]]
) -> DraftMap:
    masked = launch.source.masked
    for at, given in calls:
        if plain(given[0]).lstrip("&") != plain(host):
            continue
        names = IDENTIFIER.findall(plain(given[_ADDRESS]))
        sizes, box = (_read_initializer(masked, given[place], at) for place in (_SIZES, _BOX))
        kind = given[_TYPE].rpartition("DATA_TYPE_")[2]
        widths = (given[place] for place in (_SWIZZLE, _PROMOTION))
        swizzle, promotion = (re.search(r"_(?:L2_)?(\d+)B$", text) for text in widths)
        wide = swizzle[1] if swizzle and int(swizzle[1]) in SWIZZLES else "0"
        name = re.compile(rf"\b{parameter.name}\b")
        used = [line for line in launch.body.splitlines() if name.search(line)]
        if names and sizes and len(sizes) == len(box):
            return DraftMap(
                parameter,
                array=names[0],
                dtype=_DTYPES.get(kind),
                sizes=sizes,
                box=box,
                swizzle=wide,
                l2_promotion=promotion[1] if promotion else "0",
                stored=any(_STORES.search(line) for line in used),
                line=launch.source.line_at(at),
            )
    return DraftMap(parameter)


def _read_initializer(masked: str, text: str, before: int) -> tuple[str, ...]:
    """Read the initializer of an array: the last one before an offset, or one in its place."""
    initializer = rf"\b{re.escape(plain(text))}\s*(?:\[[^\]]*\])?\s*=?\s*\{{([^{{}}]*)\}}"
    found = [match[1] for match in re.finditer(initializer, masked[:before])]
    return tuple(piece for piece, _ in split_list(found[-1])) if found else ()
