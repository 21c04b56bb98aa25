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
    NeighbourKind,
    NeighbourSpec,
    SurroundingsSpec,
)
from tuner.space.choices import ExpressionReader, identifier
from tuner.space.schema import NeighbourModel, SpaceModel

_READ, _WRITTEN = ("input", "inout"), ("output", "inout")
_KINDS: tuple[NeighbourKind, ...] = ("gemm", "stream", "function")


def surroundings(
    reader: ExpressionReader, model: SpaceModel, arguments: Sequence[Argument]
) -> tuple[SurroundingsSpec, ...]:
    """Read all surroundings of a file; raise `SpaceError` with the line of the first mistake."""
    document, read = reader.document, list[SurroundingsSpec]()
    for name, item in model.surroundings.items():
        here = ("surroundings", name)
        identifier(document, name, *here)
        if name in (BY_WORKLOAD, ALONE):
            message = f"`{name}` cannot be the name of surroundings: --surroundings {name} has it"
            raise document.error(message, *here, remedy="choose another name")
        links = []
        for i, link in enumerate(item.chain):
            before, after = (
                tuple(
                    _neighbour(reader, neighbour, arguments, *here, "chain", i, side, j)
                    for j, neighbour in enumerate(listed)
                )
                for side, listed in (("before", link.before), ("after", link.after))
            )
            links.append(LinkSpec(before, after))
        when = reader.optional(item.when, *here, "when")
        read.append(SurroundingsSpec(name, tuple(links), when))
    return tuple(read)


def _neighbour(
    reader: ExpressionReader,
    item: NeighbourModel,
    arguments: Sequence[Argument],
    *here: str | int,
) -> NeighbourSpec:
    document, side = reader.document, here[-2]
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
    name: str = getattr(item, verb) or ""
    roles = _READ if side == "before" else _WRITTEN
    usable = {a.name: a for a in arguments if a.role in roles and a.shape}
    message = remedy = ""
    if not name and kind == "gemm":
        message, remedy = f"this product does not say what it {verb}", f"add `{verb}: ARGUMENT`"
        raise document.error(message, *here, remedy=remedy)
    if name and name not in usable:
        message = f"`{name}` is no array that the operator {other}"
        remedy = f"one of {', '.join(usable)}"
    elif name and side == "before" and usable[name].constant:
        message = f"`{name}` is `constant`, and this neighbour writes it"
        remedy = "a constant input is written by nobody near the operator: delete one of the two"
    elif name and kind == "gemm" and usable[name].dtype != "bfloat16":
        message = f"a `gemm` is of bfloat16, and `{name}` is {usable[name].dtype}"
        remedy = "use a `stream` here"
    if message:
        raise document.error(message, *here, verb, remedy=remedy)
    sizes = reader.all(item.gemm, *here, "gemm")
    if kind == "stream":
        sizes = (reader.read(item.stream, *here, "stream"),)
    return NeighbourSpec(
        kind=kind,
        array=name,
        sizes=sizes,
        function=item.function or "",
        pdl=reader.optional(item.pdl, *here, "pdl"),
        line=document.line(*here),
    )


def choose_surroundings(spec: KernelSpec, name: str) -> KernelSpec:
    """Keep the surroundings that `--surroundings` names; raise `KernelError` for unknown ones."""
    if name == BY_WORKLOAD:
        return spec
    specs = {surrounding.name: surrounding for surrounding in spec.surroundings}
    if name == ALONE:
        return replace(spec, surroundings=())
    if name not in specs:
        raise KernelError(
            f"has no surroundings named {name!r}",
            path=spec.path,
            remedy=f"--surroundings takes {', '.join((BY_WORKLOAD, ALONE, *specs))}",
        )
    return replace(spec, surroundings=(replace(specs[name], when=None),))


def check_sizes(spec: KernelSpec, workload: Workload) -> None:
    """Raise `KernelError` where a neighbour's sizes don't fit its argument on a workload."""
    surroundings = spec.surroundings_of(workload)
    for link in surroundings.links if surroundings else ():
        wrongs = [(n, _wrong_size(spec, workload, n, written=True)) for n in link.before]
        wrongs += [(n, _wrong_size(spec, workload, n, written=False)) for n in link.after]
        wrongs += [(n, _not_in_l2(spec, workload, n, link.before[-1])) for n in link.after]
        for neighbour, wrong in wrongs:
            if wrong:
                raise KernelError(
                    f"{wrong} on {workload}",
                    path=spec.path,
                    line=neighbour.line,
                    remedy="change the sizes, or say with `when` where they hold",
                )


def _not_in_l2(
    spec: KernelSpec, workload: Workload, neighbour: Neighbour, before: Neighbour
) -> str:
    """Say what a consumer lacks without the operator: it reads what the producer left instead."""
    if not neighbour.array:
        return ""
    needed = spec.argument(neighbour.array).size_bytes(workload.values)
    if neighbour.kind == "gemm":
        needed = 2 * neighbour.sizes[0] * neighbour.sizes[2]
    left = before.sizes[0] if before.kind == "stream" else 0
    if before.array:
        left = max(left, spec.argument(before.array).size_bytes(workload.values))
    if needed <= left or neighbour.kind == "function":
        return ""
    return (
        f"it reads {needed} bytes; without the operator it would find {left} of them in the L2, "
        "what the neighbour before left there,"
    )


def _wrong_size(
    spec: KernelSpec, workload: Workload, neighbour: Neighbour, *, written: bool
) -> str:
    if any(size < 1 for size in neighbour.sizes):
        return f"a neighbour's size is {min(neighbour.sizes)}"
    if neighbour.kind != "gemm":
        return ""
    m, n, k = neighbour.sizes
    shape = spec.argument(neighbour.array).dimensions(workload.values)
    has = f"`{neighbour.array}` has {' x '.join(map(str, shape))}"
    if written and m * n != prod(shape):
        return f"this product has {m} x {n} numbers, and {has}"
    if not written and m * k > prod(shape):
        return f"this product reads {m} x {k} numbers, and {has}"
    if k % 8 or n % 8:
        return f"N and K of a bf16 product must be multiples of 8, not {n} and {k}"
    if written and m > k:
        return f"a product that writes {m} rows must have K of at least as much, not {k}"
    return ""
