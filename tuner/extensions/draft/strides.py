"""Strides that a contiguous array has: products of the axes, and no axes of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.extensions.draft.array_access import Access
from tuner.extensions.draft.host_values import INTEGERS, HostLaunch
from tuner.extensions.draft.indices import IndexSite
from tuner.extensions.draft.launches import Axes, launch_draft
from tuner.extensions.draft.loops import factors_of, terms_of
from tuner.extensions.draft.translate import Scope, translate
from tuner.source.accesses import bounds_at
from tuner.source.syntax import parse_tree, text_of, walk

_NAMED = re.compile(r"(?i)(?:\w*_)?strides?(?:_\w+)?|(?:\w*_)?pitch|\w+[Ss]tride")
_ASKED = re.compile(r"(?:\.|->)\s*strides?\s*[(\[]\s*(-?\d+)?|->\s*nb\s*\[\s*(\d+)")
_SIZES = ("size", "dim", "len", "width")


def with_strides(launch: HostLaunch, axes: Axes) -> Axes:
    """Take the strides out of the axes that follow from the others where arrays are contiguous."""
    numbers = [p.name for p in launch.kernel.parameters if not p.pointers and p.dtype in INTEGERS]
    texts = {name: launch.follow(launch.passed.get(name, "")) for name in numbers}
    open_ones = (name for name, text in texts.items() if not text.strip().isdigit())
    asked = [n for n in open_ones if _NAMED.fullmatch(n) or _ASKED.search(texts[n])]
    if not asked or axes.fixed:
        return axes
    names = {name: axis for name, axis in axes.names.items() if name not in asked}
    reader = _Strides(launch, replace(axes, names=names), tuple(asked), texts)
    found = reader.find_strides()
    kept = {name: axis for name, axis in axes.names.items() if name not in found}
    return replace(axes, names=kept, strides={**axes.strides, **found}) if kept else axes


@dataclass(frozen=True, slots=True)
class _Strides:
    launch: HostLaunch
    axes: Axes
    asked: tuple[str, ...]
    texts: Mapping[str, str]

    def find_strides(self) -> dict[str, tuple[str, str]]:
        """Map strides to what they are in a contiguous array, and the place that says so."""
        indices, found = [*self.indices()], dict[str, tuple[str, str]]()
        grid = launch_draft(self.launch, self.axes, None).grid or ()
        while True:
            known = {name: text for name, (text, _) in found.items()}
            values = {**self.axes.names, **known}
            scope = Scope(values, self.launch.constants, types=self.launch.types())
            more = {
                name: stated
                for name in self.asked
                if name not in found and (stated := self.stride(name, indices, scope, grid))
            }
            if not more:
                return found
            found |= more

    def indices(self) -> Iterator[Access]:
        """Yield where the kernel touches arrays, and where it names a stride as if it did."""
        kernel, masked = self.launch.kernel, self.launch.source.masked
        yield from self.launch.accesses()
        for node in walk(parse_tree(masked)):
            inside = kernel.body[0] <= node.start_byte < kernel.body[1]
            if not inside or node.type != "identifier" or text_of(node, masked) not in self.asked:
                continue
            whole = node
            while whole.parent is not None and whole.parent.type in (
                "binary_expression", "parenthesized_expression",
            ):  # fmt: skip
                whole = whole.parent
            bounds = bounds_at(whole, kernel.body[0], masked)
            yield Access("", text_of(whole, masked), bounds, whole.start_byte, 0, exact=False)

    def stride(
        self, name: str, indices: Sequence[Access], scope: Scope, grid: tuple[str, ...]
    ) -> tuple[str, str] | None:
        told: dict[str, int] = {}
        for index in indices:
            terms = terms_of(index.index)
            minor = self.minor(name, terms, scope)
            outside = any(s != name and s in factors_of(t) for t in terms for s in self.asked)
            if minor is None or not (minor or index.counts or (index.exact and outside)):
                continue
            site = IndexSite(scope, grid, (), index.bounds, self.launch.values_at(index.at))
            inside = " + ".join(minor) or "0"
            shape = site.count_shape(inside, index.counts) or (
                site.dimensions(inside) if index.exact or minor else None
            )
            if shape:
                pieces = (text for text in shape if text != "1")
                factors = (p if re.fullmatch(r"[\w* ]+", p) else f"({p})" for p in pieces)
                told.setdefault(" * ".join(factors) or "1", self.launch.source.line_at(index.at))
        if len(told) == 1:
            text, line = next(iter(told.items()))
            return text, f"of a contiguous array, as it is indexed in line {line}"
        return None if told else self.stride_of(name)

    def minor(self, name: str, terms: Sequence[str], scope: Scope) -> list[str] | None:
        """List the terms that run inside the stride; None where one of them is not known yet."""
        places = [i for i, term in enumerate(terms) if name in factors_of(term)]
        if len(places) != 1:
            return None
        inner = []
        for place, term in enumerate(terms):
            other = next((s for s in self.asked if s in factors_of(term)), None)
            if place == places[0] or (other and self.is_outside(other, name, place < places[0])):
                continue
            if other is not None and other not in scope.values:
                return None
            # a pointer is no part of an index
            if term not in {p.name for p in self.launch.kernel.parameters if p.pointers}:
                inner.append(term)
        return inner

    def is_outside(self, other: str, name: str, comes_first: bool) -> bool:
        asked = (_ASKED.search(self.texts.get(stride, "")) for stride in (other, name))
        first, second = (int(n) if m and (n := m[1] or m[2]) else None for m in asked)
        if first is None or second is None or first == second or (first < 0) != (second < 0):
            return comes_first
        # ggml counts dimensions from the innermost
        return (first < second) != ("nb" in self.texts.get(other, ""))

    def stride_of(self, name: str) -> tuple[str, str] | None:
        """Go by the host code, `known ? x.stride(1) : head_size`, or by the stride's own name."""
        line = self.launch.site.line
        text = self.texts.get(name, "")
        branches = re.split(r"\?|:(?!:)", text)[1:]
        scope = Scope({**self.axes.texts(self.launch)}, self.launch.site.definitions)
        for branch in branches:
            written = translate(branch.strip(), scope) if not _ASKED.search(branch) else None
            if written is not None and not written.isdigit():
                return written, f"of a contiguous array, line {line}"
        stem = re.sub(r"(?i)_?strides?$", "", name)
        sizes = [a for n, a in self.axes.names.items() if n in {f"{stem}_{end}" for end in _SIZES}]
        return (sizes[0], "of a contiguous array, by its name") if len(sizes) == 1 else None
