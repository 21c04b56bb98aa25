"""What the source says of sizes, shapes and values, each with the line that says it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tuner.draft.axes import Axes, numbers_of
from tuner.draft.choices import Choice
from tuner.draft.host_values import Host, HostLaunch, Number
from tuner.draft.launches import tuned_extents
from tuner.draft.shapes import Indexing, Shape, accessed_shape, allocated_shape, pointer_text
from tuner.draft.translate import translate
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES
from tuner.source import KernelParameter
from tuner.source.accesses import Access, accesses_of
from tuner.source.facts import IDENTIFIER
from tuner.source.kernels import dtype_of, element_dtype

_NULL = ("nullptr", "NULL", "0")
_FLOAT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?")
_QUOTIENT = re.compile(rf"{_FLOAT.pattern}\s*/\s*(.+)")


@dataclass(frozen=True, slots=True)
class Told:
    """Something as the file states it, and where the source says so."""

    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class Inference:
    """All that was found; what is missing in it is left blank.

    `sizes` has one mapping of axes to numbers for each way to the launch.
    """

    axes: Axes
    shapes: Mapping[str, tuple[Shape, str]]
    values: Mapping[str, Told]
    absent: Mapping[str, Told]
    roles: Mapping[str, str]
    sizes: tuple[Mapping[str, Number], ...]

    @property
    def complete_sizes(self) -> tuple[Mapping[str, Number], ...]:
        """The ways on which every axis has a number."""
        axes = self.axes.names
        return tuple(known for known in self.sizes if axes and len(known) == len(axes))


def infer(
    launch: HostLaunch, axes: Axes, choices: tuple[Choice, ...], hosts: tuple[Host, ...]
) -> Inference:
    """Find out what can be known of the kernel's arguments and workloads.

    `choices` are what the search will change.
    """
    tuned = tuned_extents(launch, axes, choices)
    indexing = Indexing.of(launch, axes.names, tuned, choices)
    reading = _Reading(launch, axes, indexing, hosts)
    parameters = [p for p in launch.kernel.parameters if p.name]
    arrays = [p for p in parameters if p.pointers == 1]
    absent = {p.name: told for p in arrays if (told := reading.absent(p)) is not None}
    return Inference(
        axes=axes,
        shapes=reading.shapes([p for p in arrays if p.name not in absent]),
        values={
            p.name: told
            for p in parameters
            if not p.pointers and (told := reading.value(p)) is not None
        },
        absent=absent,
        roles={p.name: reading.role(p) for p in parameters if p.pointers},
        sizes=_distinct([numbers_of(launch, axes, host) for host in hosts]),
    )


class _Reading:
    def __init__(
        self, launch: HostLaunch, axes: Axes, indexing: Indexing, hosts: tuple[Host, ...]
    ) -> None:
        self.launch, self.axes, self.hosts = launch, axes, hosts
        self.types, self.indexing = launch.types(), indexing
        self.accesses: dict[str, list[Access]] = {}
        for access in accesses_of(launch.source, launch.kernel):
            self.accesses.setdefault(access.array, []).append(access)
        site = launch.site
        names = (parameter.name for parameter in launch.kernel.parameters)
        self.passed = dict(zip(names, site.arguments if site else (), strict=False))

    def shapes(self, arrays: Sequence[KernelParameter]) -> dict[str, tuple[Shape, str]]:
        indexed = {p.name: found for p in arrays if (found := self.indexed(p)) is not None}
        shapes = {}
        for parameter in arrays:
            memory, index = self.allocated(parameter), indexed.get(parameter.name)
            if index is not None and (memory is None or self._reordered(index[0], memory[0])):
                shapes[parameter.name] = index
            elif index is not None and memory is not None and index[0] == memory[0]:
                shapes[parameter.name] = memory
            elif memory is not None:
                shapes[parameter.name] = _ordered(*memory, indexed)
        return shapes

    def indexed(self, parameter: KernelParameter) -> tuple[Shape, str] | None:
        if dtype_of(parameter.c_type, self.types) is None:
            return None
        accesses = tuple(self.accesses.get(parameter.name, ()))
        found = accessed_shape(accesses, self.indexing)
        return None if found is None else (found[0], f"as it is indexed, line {found[1]}")

    def allocated(self, parameter: KernelParameter) -> tuple[Shape, str] | None:
        dtype = element_dtype(parameter.c_type, self.types)
        if dtype is None or parameter.name not in self.passed or not self.hosts:
            return None
        texts = self.axes.texts(self.launch)
        found = [
            allocated_shape(host, self.passed[parameter.name], texts, DTYPE_BYTES[dtype])
            for host in self.hosts
        ]
        first = found[0]
        return first if first and all(f is not None and f[0] == first[0] for f in found) else None

    def _reordered(self, indexed: Shape, memory: Shape) -> bool:
        # The memory says how much, in any order, or as one number; the index which way round.
        if sorted(indexed) == sorted(memory):
            return indexed != memory
        if any(IDENTIFIER.search(extent) for extent in memory):
            return False
        known = [numbers_of(self.launch, self.axes, host) for host in self.hosts]
        return all(_count(indexed, sizes) == _count(memory, {}) for sizes in known)

    def value(self, parameter: KernelParameter) -> Told | None:
        if parameter.name in self.axes.names:
            return None
        if parameter.name not in self.passed or not self.hosts:
            return None
        found = {self._value(parameter, host) for host in self.hosts}
        told = found.pop()
        return told if told is not None and not found else None

    def _value(self, parameter: KernelParameter, host: Host) -> Told | None:
        text, level = host.followed(self.passed[parameter.name])
        for constant in self.launch.source.constants:
            if constant.name == text:
                text = constant.value
        origin = f"passed in line {host.line_of(level)}"
        dtype = parameter.dtype or dtype_of(parameter.c_type, self.types) or ""
        if dtype == "bool" and text in ("true", "false"):
            return Told(text, origin)
        if "int" in dtype:
            known = host.number(self.passed[parameter.name])
            return None if known is None else Told(str(known.value), f"line {known.line}")
        if "float" not in dtype:
            return None
        if literal := _FLOAT.fullmatch(text):
            return Told(_plain_float(literal[1]), origin)
        if (quotient := _QUOTIENT.fullmatch(text)) and level == 0:
            scope = self.indexing.scope
            values = {**scope.values, **self.axes.texts(self.launch)}
            divisor = translate(quotient[2], type(scope)(values, scope.definitions))
            if divisor is not None:
                return Told(f"{_plain_float(quotient[1])} / ({divisor})", origin)
        return None

    def absent(self, parameter: KernelParameter) -> Told | None:
        passed = self.passed.get(parameter.name)
        if passed is None or not self.hosts:
            return None
        found = [pointer_text(host.followed(passed)[0]) for host in self.hosts]
        if all(text in _NULL for text in found):
            return Told("0", f"a null pointer, line {self.hosts[0].line_of(0)}")
        return None

    def role(self, parameter: KernelParameter) -> str:
        if parameter.const:
            return "input"
        accesses = self.accesses.get(parameter.name, [])
        if any(access.index is None for access in accesses):
            return self._role_by_text(parameter)
        if accesses and not any(access.writes for access in accesses):
            return "input"
        return "inout" if any(access.reads for access in accesses) else "output"

    def _role_by_text(self, parameter: KernelParameter) -> str:
        body = self.launch.source.masked[slice(*self.launch.kernel.body)]
        element = rf"\b{re.escape(parameter.name)}\s*\[(?:[^\[\]]|\[[^\]]*\])*\]"
        touched = re.findall(rf"{element}\s*(=(?!=)|\S)", body)
        atomic = re.search(rf"\batomic\w+\s*\(\s*&?\s*{re.escape(parameter.name)}\b", body)
        return "inout" if atomic or any(after != "=" for after in touched) else "output"


def _ordered(
    memory: Shape, origin: str, indexed: Mapping[str, tuple[Shape, str]]
) -> tuple[Shape, str]:
    # rows * cols and cols * rows are the same memory
    if len(memory) < 2:
        return memory, origin
    others = {s: name for name, (s, _) in indexed.items() if sorted(s) == sorted(memory)}
    if len(others) == 1:
        shape, name = next(iter(others.items()))
        return shape, f"{origin}, in the order of {name}"
    return memory, f"{origin}, in its order"


def _count(shape: Shape, sizes: Mapping[str, Number]) -> int | None:
    values = {axis: number.value for axis, number in sizes.items()}
    extents = [Expression.parse(extent) for extent in shape]
    if any(extent.names - set(values) for extent in extents):
        return None
    return prod(extent.integer(values) for extent in extents)


def _distinct(found: Sequence[dict[str, Number]]) -> tuple[Mapping[str, Number], ...]:
    kept: dict[tuple[tuple[str, int], ...], Mapping[str, Number]] = {}
    for sizes in found:
        kept.setdefault(tuple((axis, n.value) for axis, n in sizes.items()), sizes)
    return tuple(kept.values())


def _plain_float(text: str) -> str:
    return repr(float(text))
