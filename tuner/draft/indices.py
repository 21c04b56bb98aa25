"""What an index says of an array: the dimensions that it runs over, and how far apart they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.draft.host_values import plain
from tuner.draft.translate import Scope, parse_expression, translate
from tuner.source.accesses import Bound, bare
from tuner.source.facts import IDENTIFIER
from tuner.source.syntax import Node, text_of

_MAX_DEPTH = 12
_BUILTIN = re.compile(r"(blockIdx|threadIdx)\.([xyz])")

Shape = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """What the names in an index mean where it is, and what bounds them there."""

    scope: Scope
    grid: Shape
    block: Shape
    bounds: tuple[Bound, ...]
    variables: Mapping[str, str]

    def dimensions(self, text: str, depth: int = 0) -> Shape | None:
        """Find the extents that an index runs over, the outermost first; None if unknown."""
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
            # a number of threads is a choice, not a size
            of_grid, axis = match[1] == "blockIdx", "xyz".index(match[2])
            extents = (self.grid if of_grid else self.block)[axis : axis + 1]
            return extents if extents and (of_grid or IDENTIFIER.search(extents[0])) else None
        if text == "0":
            return ("1",)
        parsed = parse_expression(text)
        if parsed is not None and len(parts := _flat(*parsed, "/")) == 2:
            return self.quotient(*parts)
        return self.sum([text] if parsed is None else _flat(*parsed, "+"), depth)

    def quotient(self, dividend: str, divisor: str) -> Shape | None:
        # i / d, where i runs over n * d
        what = self.variables.get(bare(dividend), bare(dividend))
        limits = (b.limit for b in self.bounds if b.what in (bare(dividend), bare(what)))
        whole, by = (self.translated(t) for t in (next(limits, ""), divisor))
        factors = whole.split(" * ") if whole else []
        by = next((f for f in factors if by is not None and f.strip("()") == by.strip("()")), None)
        if by is None or len(factors) < 2:
            return None
        factors.remove(by)
        return tuple(factors)

    def sum(self, terms: list[str], depth: int) -> Shape | None:
        # A * B + c, where c runs over B
        for place, term in enumerate(terms):
            rest = terms[:place] + terms[place + 1 :]
            for outer, inner in _products(term):
                within = self.translated(inner)
                if within is None:
                    continue
                minor = (within,) if not rest else self.dimensions(" + ".join(rest), depth + 1)
                factors = sorted(" * ".join(minor).split(" * ")) if minor is not None else []
                if minor is None or factors != sorted(within.split(" * ")):
                    continue
                major = self.dimensions(outer, depth + 1)
                if major is not None:
                    return (*major, *minor)
        return self.stepped(terms, depth)

    def stepped(self, terms: list[str], depth: int) -> Shape | None:
        # a + b below L, where a goes up to L in steps of B, and b runs over B
        for place, term in enumerate(terms):
            limits = (bound.limit for bound in self.bounds if bound.what == bare(term))
            whole = self.translated(next(limits, ""))
            rest = terms[:place] + terms[place + 1 :]
            if whole is None or not rest:
                continue
            steps = {self.translated(by) for _, by in _products(self.variables.get(term, ""))}
            minor = self.dimensions(" + ".join(rest), depth + 1)
            if minor is not None and " * ".join(minor) in steps:
                return (whole,)
        return None

    def strides(self, text: str, by: Shape = (), depth: int = 0) -> Iterator[str]:
        """Yield what the parts of an index are multiplied by, each as a sorted product."""
        text = plain(text)
        parsed = parse_expression(self.variables.get(text, text)) if depth <= _MAX_DEPTH else None
        for term in _flat(*parsed, "+") if parsed is not None else ():
            whole = parse_expression(plain(term))
            factors = _flat(*whole, "*") if whole is not None else [term]
            known = [self.translated(factor) for factor in factors]
            running = [f for f, extent in zip(factors, known, strict=True) if extent is None]
            if len(running) != 1:
                continue
            further = (*by, *(extent for extent in known if extent is not None))
            if further:
                yield product(further)
            if len(factors) > 1 or running[0] in self.variables:
                yield from self.strides(running[0], further, depth + 1)

    def translated(self, text: str) -> str | None:
        known = {**self.variables, **self.scope.definitions}
        return translate(text, replace(self.scope, definitions=known))


def undivided(shape: Shape) -> Iterator[str]:
    # K // vec words of vec elements are K elements: the kernel takes no other K
    extents = list(shape)
    while extents:
        first = extents.pop(0)
        if extents and first.endswith(f" // {extents[0]}"):
            first = first.removesuffix(f" // {extents.pop(0)}")
        yield first


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
    parsed = parse_expression(plain(term))
    factors = [] if parsed is None else _flat(*parsed, "*")
    pairs = []
    for split in range(1, len(factors)):
        outer, inner = " * ".join(factors[:split]), " * ".join(factors[split:])
        pairs += [(outer, inner), (inner, outer)]
    return pairs


def product(extents: Sequence[str]) -> str:
    """Write a product so that equal ones are equal texts."""
    return " * ".join(sorted(factor for extent in extents for factor in extent.split(" * ")))
