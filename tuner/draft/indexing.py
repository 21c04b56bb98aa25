"""The shape of an array from how the kernel indexes it: what bounds each part of the index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner.draft.callers import plain
from tuner.draft.choices import Choice
from tuner.draft.host_launch import HostLaunch
from tuner.draft.launches import LaunchDraft
from tuner.draft.translate import Scope, translate
from tuner.source.accesses import Access
from tuner.source.assignments import assigned
from tuner.source.bounds import Bound, bare
from tuner.source.facts import IDENTIFIER
from tuner.source.tree import Node, parse_tree, text_of, walk

_MAX_DEPTH = 12
_BUILTIN = re.compile(r"(blockIdx|threadIdx)\.([xyz])")

Shape = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Indexing:
    """What indices of one kernel mean: its sizes as axes, and the extents of its launch.

    `tunable` names what the search will change: no shape may depend on it.
    """

    launch: HostLaunch
    scope: Scope
    grid: Shape
    block: Shape
    tunable: frozenset[str]

    @classmethod
    def of(
        cls,
        launch: HostLaunch,
        axes: Mapping[str, str],
        tuned: LaunchDraft,
        choices: tuple[Choice, ...],
    ) -> Indexing:
        """Take the extents of the template's launch; `axes` maps C++ names to axes."""
        own = {p.name for p in launch.kernel.parameters} | {c.name for c in launch.source.constants}
        definitions = {c.name: c.value for c in launch.source.constants}
        for parameter, text in zip(launch.kernel.template, launch.instance or (), strict=False):
            definitions.setdefault(parameter.name, text)
        values = {name: axis for name, axis in axes.items() if name in own}
        values |= {c.origin: c.name for c in choices if c.origin is not None}
        scope = Scope(values=values, definitions=definitions, types=launch.types())
        tunable = frozenset(choice.name for choice in choices)
        return cls(launch, scope, tuned.grid or (), tuned.block or (), tunable)

    def shape(self, access: Access) -> Shape | None:
        """Find the dimensions that an index runs over; None where something is not bounded."""
        if access.index is None:
            return None
        site = _Site(self, access.bounds, self._variables(access.at))
        found = site.dimensions(access.index, 0)
        if found is None:
            return None
        shape = tuple(_undivided(found))
        named = {name for extent in shape for name in IDENTIFIER.findall(extent)}
        return None if named & self.tunable else shape

    def _variables(self, at: int) -> Mapping[str, str]:
        source, body = self.launch.source, self.launch.kernel.body
        found = assigned(source.masked, (body,), at)
        return {name: value.text for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class _Site:
    kernel: Indexing
    bounds: tuple[Bound, ...]
    variables: Mapping[str, str]

    def dimensions(self, text: str, depth: int) -> Shape | None:
        text = plain(text)
        if depth > _MAX_DEPTH:
            return None
        limit = next((bound.limit for bound in self.bounds if bound.what == bare(text)), None)
        if limit is not None:
            extent = self.translated(limit)
            return None if extent is None else (extent,)
        if text in self.variables:
            return self.dimensions(self.variables[text], depth + 1)
        if match := _BUILTIN.fullmatch(bare(text)):
            return self.builtin(match[1], "xyz".index(match[2]))
        if text == "0":
            return ("1",)
        return self.sum(_terms(text), depth)

    def builtin(self, name: str, axis: int) -> Shape | None:
        extents = self.kernel.grid if name == "blockIdx" else self.kernel.block
        extent = extents[axis] if axis < len(extents) else None
        # a number of threads is a choice, not a size
        if extent is None or (name == "threadIdx" and not IDENTIFIER.search(extent)):
            return None
        return (extent,)

    def sum(self, terms: list[str], depth: int) -> Shape | None:
        # A * B + c, where c runs over B
        for place, term in enumerate(terms):
            rest = terms[:place] + terms[place + 1 :]
            for outer, inner in _products(term):
                within = self.translated(inner)
                if within is None:
                    continue
                minor = (within,) if not rest else self.dimensions(" + ".join(rest), depth + 1)
                if minor is None or not _same(minor, within):
                    continue
                major = self.dimensions(outer, depth + 1)
                if major is not None:
                    return (*major, *minor)
        return None

    def translated(self, text: str) -> str | None:
        scope = self.kernel.scope
        known = {**self.variables, **scope.definitions}
        return translate(text, Scope(scope.values, known, types=scope.types))


def _undivided(shape: Shape) -> Iterator[str]:
    # K // vec words of vec elements are K elements: the kernel takes no other K
    extents = list(shape)
    while extents:
        first = extents.pop(0)
        if extents and first.endswith(f" // {extents[0]}"):
            first = first.removesuffix(f" // {extents.pop(0)}")
        yield first


def _same(minor: Shape, whole: str) -> bool:
    factors = [part for extent in minor for part in extent.split(" * ")]
    return sorted(factors) == sorted(whole.split(" * "))


def _expression(text: str) -> tuple[str, Node] | None:
    source = f"auto value = {text};"
    root = parse_tree(source)
    declarator = next((node for node in walk(root) if node.type == "init_declarator"), None)
    value = declarator.child_by_field_name("value") if declarator is not None else None
    return None if value is None or root.has_error else (source, value)


def _terms(text: str) -> list[str]:
    parsed = _expression(text)
    return [text] if parsed is None else list(_flat(*parsed, "+"))


def _flat(source: str, node: Node, sign: str) -> list[str]:
    while node.type == "parenthesized_expression":
        node = node.named_children[0]
    operator = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    left, right = (node.child_by_field_name(side) for side in ("left", "right"))
    if operator is None or left is None or right is None or text_of(operator, source) != sign:
        text = text_of(node, source)
        return [text if sign == "+" else f"({text})"]
    return [*_flat(source, left, sign), *_flat(source, right, sign)]


def _products(term: str) -> list[tuple[str, str]]:
    parsed = _expression(plain(term))
    factors = [] if parsed is None else _flat(*parsed, "*")
    pairs = []
    for split in range(1, len(factors)):
        outer, inner = " * ".join(factors[:split]), " * ".join(factors[split:])
        pairs += [(outer, inner), (inner, outer)]
    return pairs


def accessed_shape(accesses: tuple[Access, ...], kernel: Indexing) -> tuple[Shape, int] | None:
    """Find the one shape that all accesses of an array agree on, and the line of the first.

    None where they differ, or one of them cannot be told.
    """
    telling = tuple(access for access in accesses if access.index != "0") or accesses
    shapes = [kernel.shape(access) for access in telling]
    first = shapes[0] if shapes else None
    if first is None or any(shape != first for shape in shapes):
        return None
    return first, telling[0].line
