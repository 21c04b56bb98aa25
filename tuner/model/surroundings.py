"""What runs before and after an operator in a model: as a file states it, and for one workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tuner.model.expressions import Expression, Value

NeighbourKind = Literal["gemm", "stream", "function"]
# `--surroundings`: what the file says of each workload, or none.
BY_WORKLOAD, ALONE = "auto", "alone"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One launch beside the operator, in plain numbers.

    `array` is the argument that it writes (before the operator) or reads (after it), "" for none.
    `sizes` are M, N and K of a bf16 product through cuBLAS (`gemm`), or the bytes that a stand-in
    moves through the L2 (`stream`). `function` is defined by the reference file. `pdl` says that a
    stand-in takes part in programmatic dependent launch: the one before lets the operator begin
    early, as the reduction of a split product does, and the one after waits for its end.
    """

    kind: NeighbourKind
    array: str = ""
    sizes: tuple[int, ...] = ()
    function: str = ""
    pdl: bool = False
    line: int | None = None

    def __str__(self) -> str:
        what = self.function or f"{self.kind} {' x '.join(map(str, self.sizes))}"
        return f"{what} at {self.array}" if self.array else what


@dataclass(frozen=True, slots=True)
class Link:
    """One place of the operator in a model: what runs before it, and what runs after it."""

    before: tuple[Neighbour, ...] = ()
    after: tuple[Neighbour, ...] = ()

    def __str__(self) -> str:
        return _sides(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What runs before and after an operator on one workload, whose axes they are.

    A model calls an operator in several places: a chain alternates between its `links`.
    """

    name: str
    links: tuple[Link, ...]
    axes: tuple[tuple[str, int], ...] = ()

    @property
    def neighbours(self) -> tuple[Neighbour, ...]:
        return tuple(neighbour for link in self.links for neighbour in (*link.before, *link.after))

    @property
    def successor_waits(self) -> bool:
        """Whether every next launch is known to wait, so that it may begin early."""
        return all(link.after and link.after[0].pdl for link in self.links)

    @property
    def content(self) -> str:
        """What tells these from others, wherever in a file they stand."""
        bare = [
            Link(
                *(
                    tuple(replace(neighbour, line=None) for neighbour in side)
                    for side in (a.before, a.after)
                )
            )
            for a in self.links
        ]
        return f"{self.name}: {'; or '.join(map(repr, bare))}"

    def __str__(self) -> str:
        return f"{self.name}: {'; or '.join(map(str, self.links))}"


@dataclass(frozen=True, slots=True)
class NeighbourSpec:
    """A neighbour as the file states it: its sizes are expressions over the axes."""

    kind: NeighbourKind
    array: str = ""
    sizes: tuple[Expression, ...] = ()
    function: str = ""
    pdl: Expression | None = None
    line: int | None = None

    def on(self, names: Mapping[str, Value]) -> Neighbour:
        """Evaluate the sizes, and whether it takes part in programmatic dependent launch."""
        sizes = tuple(size.integer(names) for size in self.sizes)
        pdl = bool(self.pdl and self.pdl.evaluate(names))
        return Neighbour(self.kind, self.array, sizes, self.function, pdl, self.line)

    def __str__(self) -> str:
        what = self.function or f"{self.kind} {' x '.join(size.text for size in self.sizes)}"
        return f"{what} at {self.array}" if self.array else what


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A link as the file states it."""

    before: tuple[NeighbourSpec, ...] = ()
    after: tuple[NeighbourSpec, ...] = ()

    def on(self, axes: Mapping[str, int]) -> Link:
        """Evaluate all sizes."""
        return Link(*(tuple(n.on(axes) for n in side) for side in (self.before, self.after)))

    def __str__(self) -> str:
        return _sides(self.before, self.after)


@dataclass(frozen=True, slots=True)
class SurroundingsSpec:
    """Surroundings as the file states them; `when` says on which workloads, None for all."""

    name: str
    links: tuple[LinkSpec, ...]
    when: Expression | None = None

    def holds(self, names: Mapping[str, Value]) -> bool:
        return self.when is None or bool(self.when.evaluate(names))

    def on(self, axes: Mapping[str, int]) -> Surroundings:
        """Evaluate all sizes."""
        return Surroundings(
            self.name, tuple(link.on(axes) for link in self.links), tuple(axes.items())
        )

    def __str__(self) -> str:
        return f"{self.name}: {'; or '.join(map(str, self.links))}"


def _sides(before: Iterable[object], after: Iterable[object]) -> str:
    sides = ["; ".join(map(str, side)) or "nothing" for side in (before, after)]
    return f"after {sides[0]}, before {sides[1]}"
