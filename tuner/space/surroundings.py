"""The part of a search-space file that says what runs before and after the operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tuner.model.errors import KernelError
from tuner.model.kernel import Argument, KernelSpec, Workload
from tuner.model.surroundings import (
    ALONE,
    BY_WORKLOAD,
    LinkSpec,
    Neighbour,
    NeighbourSpec,
    SurroundingsSpec,
)
from tuner.space.choices import expression, identifier, optional
from tuner.space.schema import LinkModel, NeighbourModel, SpaceModel
from tuner.space.yaml import Document

_READ, _WRITTEN = ("input", "inout"), ("output", "inout")
_KINDS = ("gemm", "stream", "function")


def surroundings(
    document: Document, model: SpaceModel, arguments: Sequence[Argument], axes: frozenset[str]
) -> tuple[SurroundingsSpec, ...]:
    """Read all surroundings of a file; raise `SpaceError` with the line of the first mistake."""
    reader = _Reader(document, {one.name: one for one in arguments}, axes)
    found = []
    for name, item in model.surroundings.items():
        here = ("surroundings", name)
        identifier(document, name, *here)
        if name in (BY_WORKLOAD, ALONE):
            message = f"`{name}` cannot be the name of surroundings: --surroundings {name} has it"
            raise document.error(message, *here, remedy="choose another name")
        links = tuple(reader.link(one, *here, "chain", i) for i, one in enumerate(item.chain))
        when = optional(document, item.when, axes, *here, "when")
        found.append(SurroundingsSpec(name, links, when))
    return tuple(found)


class _Reader:
    def __init__(
        self, document: Document, arguments: dict[str, Argument], axes: frozenset[str]
    ) -> None:
        self._document, self._arguments, self._axes = document, arguments, axes

    def link(self, item: LinkModel, *here: str | int) -> LinkSpec:
        before, after = (
            tuple(self.neighbour(one, side, *here, side, i) for i, one in enumerate(listed))
            for side, listed in (("before", item.before), ("after", item.after))
        )
        return LinkSpec(before, after)

    def neighbour(self, item: NeighbourModel, side: str, *here: str | int) -> NeighbourSpec:
        document = self._document
        given = [kind for kind in _KINDS if getattr(item, kind) is not None]
        if len(given) != 1:
            message = f"this neighbour has {' and '.join(given) or 'none'} of {', '.join(_KINDS)}"
            raise document.error(message, *here, remedy="write one of them: {stream: 16777216}")
        kind = given[0]
        verb, other = ("writes", "reads") if side == "before" else ("reads", "writes")
        if getattr(item, other) is not None:
            message = f"`{other}` has no meaning {side} the operator"
            remedy = f"{side} it a neighbour `{verb}` one of the arguments"
            raise document.error(message, *here, other, remedy=remedy)
        if item.pdl and kind != "stream":
            message = f"`pdl` is for a `stream`: a {kind} says itself how it is launched"
            raise document.error(message, *here, "pdl", remedy="delete it")
        array: str = getattr(item, verb) or ""
        if array:
            self._require_argument(array, side, kind, *here, verb)
        elif kind == "gemm":
            message = f"this product does not say what it {verb}"
            raise document.error(message, *here, remedy=f"add `{verb}: ARGUMENT`")
        sizes = item.gemm if kind == "gemm" else [item.stream] if kind == "stream" else []
        places = [(*here, kind, i) if kind == "gemm" else (*here, kind) for i in range(3)]
        return NeighbourSpec(
            kind=kind,  # type: ignore[arg-type]
            array=array,
            sizes=tuple(
                expression(document, size, self._axes, *place)
                for size, place in zip(sizes or (), places, strict=False)
            ),
            function=item.function or "",
            pdl=optional(document, item.pdl, self._axes, *here, "pdl"),
            line=document.line(*here),
        )

    def _require_argument(self, name: str, side: str, kind: str, *here: str | int) -> None:
        roles = _READ if side == "before" else _WRITTEN
        usable = [one for one in self._arguments.values() if one.role in roles and one.shape]
        if name not in {one.name for one in usable}:
            what = "reads" if side == "before" else "writes"
            message = f"`{name}` is no array that the operator {what}"
            remedy = f"one of {', '.join(one.name for one in usable)}"
            raise self._document.error(message, *here, remedy=remedy)
        if side == "before" and self._arguments[name].constant:
            message = f"`{name}` is `constant`, and this neighbour writes it"
            remedy = (
                "a constant input is written by nobody near the operator: delete one of the two"
            )
            raise self._document.error(message, *here, remedy=remedy)
        dtype = self._arguments[name].dtype
        if kind == "gemm" and dtype != "bfloat16":
            message = f"a `gemm` is of bfloat16, and `{name}` is {dtype}"
            raise self._document.error(message, *here, remedy="use a `stream` here")


def chosen(spec: KernelSpec, name: str) -> KernelSpec:
    """Keep the surroundings that `--surroundings` names; raise `KernelError` for unknown ones."""
    if name == BY_WORKLOAD:
        return spec
    known = {one.name: one for one in spec.surroundings}
    if name == ALONE:
        return replace(spec, surroundings=())
    if name not in known:
        raise KernelError(
            f"has no surroundings named {name!r}",
            path=spec.path,
            remedy=f"--surroundings takes {', '.join((BY_WORKLOAD, ALONE, *known))}",
        )
    return replace(spec, surroundings=(replace(known[name], when=None),))


def check_sizes(spec: KernelSpec, workload: Workload) -> None:
    """Raise `KernelError` where a neighbour's sizes don't fit its argument on a workload."""
    found = spec.surroundings_of(workload)
    for link in found.links if found else ():
        wrongs = [(one, _wrong_size(spec, workload, one, written=True)) for one in link.before]
        wrongs += [(one, _wrong_size(spec, workload, one, written=False)) for one in link.after]
        wrongs += [(one, _not_in_l2(spec, workload, one, link.before[-1])) for one in link.after]
        for one, wrong in wrongs:
            if wrong:
                raise KernelError(
                    f"{wrong} on {workload}",
                    path=spec.path,
                    line=one.line,
                    remedy="change the sizes, or say with `when` where they hold",
                )


def _not_in_l2(spec: KernelSpec, workload: Workload, one: Neighbour, before: Neighbour) -> str:
    """Say what a consumer lacks without the operator: it reads what the producer left instead."""
    if not one.array:
        return ""
    needed = spec.argument(one.array).size_bytes(workload.values)
    if one.kind == "gemm":
        needed = 2 * one.sizes[0] * one.sizes[2]
    left = before.sizes[0] if before.kind == "stream" else 0
    if before.array:
        left = max(left, spec.argument(before.array).size_bytes(workload.values))
    if needed <= left or one.kind == "function":
        return ""
    return (
        f"it reads {needed} bytes; without the operator it would find {left} of them in the L2, "
        "what the neighbour before left there,"
    )


def _wrong_size(spec: KernelSpec, workload: Workload, one: Neighbour, *, written: bool) -> str:
    if any(size < 1 for size in one.sizes):
        return f"a neighbour's size is {min(one.sizes)}"
    if one.kind != "gemm":
        return ""
    m, n, k = one.sizes
    shape = spec.argument(one.array).dimensions(workload.values)
    has = f"`{one.array}` has {' x '.join(map(str, shape))}"
    if written and m * n != prod(shape):
        return f"this product has {m} x {n} numbers, and {has}"
    if not written and m * k > prod(shape):
        return f"this product reads {m} x {k} numbers, and {has}"
    if k % 8 or n % 8:
        return f"N and K of a bf16 product must be multiples of 8, not {n} and {k}"
    if written and m > k:
        return f"a product that writes {m} rows must have K of at least as much, not {k}"
    return ""
