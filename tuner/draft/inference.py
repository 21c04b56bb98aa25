"""What the source says of sizes, shapes, values and roles, each with the line that says it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tuner.draft.choices import TunableConstant
from tuner.draft.host_values import Host, HostLaunch, Number
from tuner.draft.launches import Axes, LaunchDraft, numbers_of
from tuner.draft.shapes import Indexing, Shape, accessed_shape, allocated_shape, pointer_text
from tuner.draft.translate import Scope, translate
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES
from tuner.source import KernelParameter
from tuner.source.accesses import Access, accesses_of
from tuner.source.facts import IDENTIFIER
from tuner.source.kernels import dtype_of, element_dtype

_NULL = ("nullptr", "NULL", "0")
_FLOAT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?")
_QUOTIENT = re.compile(rf"{_FLOAT.pattern}\s*/\s*(.+)")

# a text as the file states it, and where the source says so
Stated = tuple[str, str]
ShapeAndOrigin = tuple[Shape, str]


@dataclass(frozen=True, slots=True)
class DraftArgument:
    """One argument as far as it is known; `role` is None for a scalar, the others if unknown."""

    parameter: KernelParameter
    dtype: str | None
    role: str | None = None
    shape: Shape | None = None
    value: str | None = None
    origin: str = ""

    @property
    def known(self) -> bool:
        """Whether nothing is left to fill in."""
        stated = self.shape if self.role is not None else self.value
        return self.dtype is not None and stated is not None and bool(self.parameter.name)


@dataclass(frozen=True, slots=True)
class Inference:
    """All that was found; `sizes` has one mapping of axes to numbers for each way to the launch."""

    axes: Axes
    arguments: tuple[DraftArgument, ...]
    sizes: tuple[Mapping[str, Number], ...]

    @property
    def complete_sizes(self) -> tuple[Mapping[str, Number], ...]:
        """The ways on which every axis has a number."""
        axes = self.axes.names
        return tuple(known for known in self.sizes if axes and len(known) == len(axes))


def infer(
    launch: HostLaunch,
    axes: Axes,
    tuned: LaunchDraft,
    choices: Sequence[TunableConstant],
    hosts: Sequence[Host],
) -> Inference:
    """Find out what can be known of the kernel's arguments and workloads.

    `tuned` is the template's launch, and `choices` are what the search will change.
    """
    reading = _Reading(launch, axes, Indexing.of(launch, axes, tuned, choices), hosts)
    distinct: dict[tuple[tuple[str, int], ...], Mapping[str, Number]] = {}
    for sizes in reading.sizes:
        distinct.setdefault(tuple((axis, n.value) for axis, n in sizes.items()), sizes)
    return Inference(axes, reading.arguments(), tuple(distinct.values()))


class _Reading:
    def __init__(
        self, launch: HostLaunch, axes: Axes, indexing: Indexing, hosts: Sequence[Host]
    ) -> None:
        self.launch, self.axes, self.hosts = launch, axes, hosts
        self.types, self.indexing, self.passed = launch.types(), indexing, launch.passed
        self.sizes = [numbers_of(launch, axes, host) for host in hosts]
        self.accesses: dict[str, list[Access]] = {}
        for access in accesses_of(launch.source, launch.kernel):
            self.accesses.setdefault(access.array, []).append(access)

    def arguments(self) -> tuple[DraftArgument, ...]:
        parameters = self.launch.kernel.parameters
        absent = {p.name: told for p in parameters if (told := self.absent(p)) is not None}
        arrays = [p for p in parameters if p.name and p.pointers == 1 and p.name not in absent]
        shapes = self.shapes(arrays)
        found = []
        for p in parameters:
            dtype = element_dtype(p.c_type, self.types) if p.pointers < 2 else None
            if p.name in absent:
                value, origin = absent[p.name]
                argument = DraftArgument(p, "int64", value=value, origin=origin)
            elif p.pointers:
                shape, origin = shapes.get(p.name, (None, ""))
                argument = DraftArgument(p, dtype, self.role(p), shape, origin=origin)
            elif p.name in self.axes.names:
                argument = DraftArgument(p, dtype, value=self.axes.names[p.name])
            else:
                told = self.value(p)
                argument = DraftArgument(p, dtype, None, None, *(told or (None, "")))
            found.append(argument)
        return tuple(found)

    def shapes(self, arrays: Sequence[KernelParameter]) -> dict[str, ShapeAndOrigin]:
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

    def indexed(self, parameter: KernelParameter) -> ShapeAndOrigin | None:
        if dtype_of(parameter.c_type, self.types) is None:
            return None
        found = accessed_shape(self.accesses.get(parameter.name, ()), self.indexing)
        return None if found is None else (found[0], f"as it is indexed, line {found[1]}")

    def allocated(self, parameter: KernelParameter) -> ShapeAndOrigin | None:
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
        return all(_count(indexed, sizes) == _count(memory, {}) for sizes in self.sizes)

    def value(self, parameter: KernelParameter) -> Stated | None:
        if not parameter.name or parameter.name not in self.passed:
            return None
        found = {self._value(parameter, host) for host in self.hosts}
        return found.pop() if len(found) == 1 else None

    def _value(self, parameter: KernelParameter, host: Host) -> Stated | None:
        text, level = host.followed(self.passed[parameter.name])
        for constant in self.launch.source.constants:
            if constant.name == text:
                text = constant.value
        origin = f"passed in line {host.path[level].line}"
        dtype = parameter.dtype or dtype_of(parameter.c_type, self.types) or ""
        if dtype == "bool" and text in ("true", "false"):
            return text, origin
        if "int" in dtype:
            known = host.number(self.passed[parameter.name])
            return None if known is None else (str(known.value), f"line {known.line}")
        if "float" not in dtype:
            return None
        if literal := _FLOAT.fullmatch(text):
            return _plain_float(literal[1]), origin
        if (quotient := _QUOTIENT.fullmatch(text)) and level == 0:
            scope = self.indexing.scope
            values = {**scope.values, **self.axes.texts(self.launch)}
            divisor = translate(quotient[2], Scope(values, scope.definitions))
            if divisor is not None:
                return f"{_plain_float(quotient[1])} / ({divisor})", origin
        return None

    def absent(self, parameter: KernelParameter) -> Stated | None:
        if not parameter.name or parameter.pointers != 1 or parameter.name not in self.passed:
            return None
        passed = self.passed[parameter.name]
        found = {pointer_text(host.followed(passed)[0]) for host in self.hosts}
        if not found or not found <= {*_NULL}:
            return None
        return "0", f"a null pointer, line {self.hosts[0].path[0].line}"

    def role(self, parameter: KernelParameter) -> str:
        if not parameter.name:
            return "output"
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


def _ordered(memory: Shape, origin: str, indexed: Mapping[str, ShapeAndOrigin]) -> ShapeAndOrigin:
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


def _plain_float(text: str) -> str:
    return repr(float(text))
