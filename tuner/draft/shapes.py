"""The shape of an array from how the kernel indexes it: what bounds each part of the index."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner.draft.choices import Choice
from tuner.draft.host_values import Host, HostLaunch, plain
from tuner.draft.launches import LaunchDraft
from tuner.draft.translate import Scope, translate
from tuner.source.accesses import Access, Bound, assigned, bare
from tuner.source.facts import IDENTIFIER
from tuner.source.launches import Allocation, allocations_in
from tuner.source.syntax import Node, number, parse_tree, text_of, walk

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


_MAX_HOPS = 8
_POINTER_OF = re.compile(
    r"(?:thrust\s*::\s*)?raw_pointer_cast\s*\((.*)\)"
    r"|(.+?)\s*(?:\.|->)\s*(?:data|get|begin|data_ptr)\s*(?:<[^<>]*>)?\s*\(\s*\)"
    r"|&\s*(.+?)\s*\[\s*0\s*\]"
)


def pointer_text(text: str) -> str:
    """Strip what only turns a container into a pointer: `x.data()` and the like."""
    text = plain(text)
    for _ in range(_MAX_HOPS):
        match = _POINTER_OF.fullmatch(text)
        if match is None:
            break
        text = plain(next(piece for piece in match.groups() if piece is not None))
    return text


def allocated_shape(
    host: Host, text: str, axes: Mapping[str, str], element_bytes: int
) -> tuple[tuple[str, ...], str] | None:
    """Find the dimensions of what a pointer in the launch points to, and where they come from.

    `axes` maps texts of the launch's own function to axes.
    """
    level, known = 0, dict(axes)
    for _ in range(_MAX_HOPS):
        frame = host.path[level]
        known |= _also(known, frame.variables)
        text = pointer_text(text)
        memory = [
            allocation
            for allocation in allocations_in(host.source, frame.span, dict(frame.variables))
            if allocation.target == text
        ]
        if memory:
            return _shape(memory, _scope(host, level, known), element_bytes)
        if text in frame.variables:
            text = frame.variables[text].text
        elif text in frame.passed and level + 1 < len(host.path):
            text, level = frame.passed[text], level + 1
            known = _at_caller(known, frame.passed)
        else:
            return None
    return None


def _also(known: Mapping[str, str], variables: Mapping[str, object]) -> dict[str, str]:
    # `int n = COUNT;`: what n is an axis for, COUNT is too
    found = {}
    for name, axis in known.items():
        value = plain(str(getattr(variables.get(name), "text", "")))
        if IDENTIFIER.fullmatch(value):
            found[value] = axis
    return found


def _at_caller(known: Mapping[str, str], passed: Mapping[str, str]) -> dict[str, str]:
    return {
        plain(text): known[name]
        for name, text in passed.items()
        if name in known and number(text) is None
    }


def _scope(host: Host, level: int, known: Mapping[str, str]) -> Scope:
    definitions = {constant.name: constant.value for constant in host.source.constants}
    definitions |= {name: value.text for name, value in host.path[level].variables.items()}
    return Scope(values=known, definitions=definitions, types=host.source.aliases)


def _shape(
    memory: list[Allocation], scope: Scope, element_bytes: int
) -> tuple[tuple[str, ...], str] | None:
    found = {_extents(one, scope, element_bytes) for one in memory}
    extents = found.pop()
    return (
        None if extents is None or found else (extents, f"{memory[0].how}, line {memory[0].line}")
    )


def _extents(memory: Allocation, scope: Scope, element_bytes: int) -> tuple[str, ...] | None:
    size = translate(memory.size, scope)
    if size is None:
        return None
    factors = _factors(ast.parse(size, mode="eval").body)
    if memory.in_bytes and element_bytes == 1:
        factors = [factor for factor in factors if factor != "1"] or factors
    elif memory.in_bytes:
        leading = memory.size.lstrip("( ").startswith("sizeof")
        places = list(range(len(factors))) if leading else list(reversed(range(len(factors))))
        place = next((i for i in places if _divisible(factors[i], element_bytes)), None)
        if place is None:
            return None
        left = int(factors[place]) // element_bytes
        factors[place : place + 1] = [str(left)] if left > 1 or len(factors) == 1 else []
    return tuple(factors) or None


def _factors(node: ast.expr) -> list[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [ast.unparse(node)]


def _divisible(factor: str, element_bytes: int) -> bool:
    return factor.isdigit() and int(factor) % element_bytes == 0 and int(factor) > 0
