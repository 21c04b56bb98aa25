"""What the source says of sizes, shapes, values and roles, each with the line that says it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from math import prod

from tuner.draft.choices import TunableConstant
from tuner.draft.host_values import Host, HostLaunch, Number, plain
from tuner.draft.indices import Shape, Site, product, undivided
from tuner.draft.launches import Axes, LaunchDraft, numbers_of
from tuner.draft.translate import Scope, translate
from tuner.model.kernel import DTYPE_BYTES
from tuner.source.accesses import Access, accesses_of, assigned
from tuner.source.facts import IDENTIFIER, KernelParameter
from tuner.source.kernels import dtype_of, element_dtype
from tuner.source.launches import Allocation, allocations_in
from tuner.source.syntax import number
from tuner.source.uses import ConstantMemory, Use, constant_memory, uses_of

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
) -> tuple[Shape, str] | None:
    """Find the dimensions of what a pointer in the launch points to, and where they come from."""
    level, known = 0, dict(axes)
    for _ in range(_MAX_HOPS):
        frame = host.path[level]
        # `int n = COUNT;`: what n is an axis for, COUNT is too
        values = {n: plain(frame.variables[n].text) for n in known if n in frame.variables}
        known |= {value: known[n] for n, value in values.items() if IDENTIFIER.fullmatch(value)}
        text = pointer_text(text)
        found = allocations_in(host.source, frame.span, dict(frame.variables))
        memory = [allocation for allocation in found if allocation.target == text]
        if memory:
            definitions = {constant.name: constant.value for constant in host.source.constants}
            definitions |= {name: value.text for name, value in frame.variables.items()}
            scope = Scope(values=known, definitions=definitions, types=host.source.aliases)
            shapes = {_extents(one, scope, element_bytes) for one in memory}
            shape = shapes.pop() if len(shapes) == 1 else None
            return None if shape is None else (shape, f"{memory[0].how}, line {memory[0].line}")
        if text in frame.variables:
            text = frame.variables[text].text
        elif text in frame.passed and level + 1 < len(host.path):
            text, level = frame.passed[text], level + 1
            passed = {name: own for name, own in frame.passed.items() if number(own) is None}
            known = {plain(own): known[name] for name, own in passed.items() if name in known}
        else:
            return None
    return None


def _extents(memory: Allocation, scope: Scope, element_bytes: int) -> Shape | None:
    size = translate(memory.size, scope)
    if size is None:
        return None
    factors = _factors(ast.parse(size, mode="eval").body)
    if memory.in_bytes and element_bytes == 1:
        factors = [factor for factor in factors if factor != "1"] or factors
    elif memory.in_bytes:
        leading = memory.size.lstrip("( ").startswith("sizeof")
        places = list(range(len(factors))) if leading else list(reversed(range(len(factors))))
        divisible = (i for i in places if factors[i].isdigit() and int(factors[i]) > 0)
        place = next((i for i in divisible if int(factors[i]) % element_bytes == 0), None)
        if place is None:
            return None
        left = int(factors[place]) // element_bytes
        factors[place : place + 1] = [str(left)] if left > 1 or len(factors) == 1 else []
    return tuple(factors) or None


def _factors(node: ast.expr) -> list[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [ast.unparse(node)]


_NULL = ("nullptr", "NULL", "0")
_FLOAT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?")

# a text as the file states it, and where the source says so
Stated = tuple[str, str]
ShapeAndOrigin = tuple[Shape, str]
# how far a guess goes, the surest first
SURE, LIKELY, GUESSED = CERTAINTIES = ("sure", "likely", "guessed")
_LONGEST_CODE = 60
# All orders of so many dimensions are tried.
_MOST_ORDERED = 5
# Smaller numbers agree with an axis by chance.
_LEAST_TELLING = 8
_MOST_FACTORS = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the source says for a guess, and how sure that makes it."""

    certainty: str
    text: str


@dataclass(frozen=True, slots=True)
class DraftArgument:
    """One argument as far as it is known; `role` is None for a scalar, the others if unknown.

    `scale` is the usual size of an output's elements.
    """

    parameter: KernelParameter
    dtype: str | None
    role: str | None = None
    shape: Shape | None = None
    value: str | None = None
    evidence: tuple[Evidence, ...] = ()
    origin: str = ""
    fill: str = ""
    scale: float | None = None

    @property
    def certainty(self) -> str:
        """That of the least sure evidence."""
        known = (one.certainty for one in self.evidence)
        return max(known, key=CERTAINTIES.index, default=SURE)


@dataclass(frozen=True, slots=True)
class Inference:
    """All that was found; `sizes` has one mapping of axes to numbers for each way to the launch."""

    axes: Axes
    arguments: tuple[DraftArgument, ...]
    sizes: tuple[Mapping[str, Number], ...]
    constant_memory: tuple[ConstantMemory, ...] = ()
    held_out: tuple[Mapping[str, int], ...] = ()
    edge_cases: tuple[Mapping[str, int], ...] = ()
    sizes_from: str = ""

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
    """Find out what can be known of arguments and workloads; `tuned` is the template's launch."""
    reading = _Reading(launch, axes, tuned, choices, hosts)
    distinct: dict[tuple[tuple[str, int], ...], Mapping[str, Number]] = {}
    for sizes in reading.sizes:
        distinct.setdefault(tuple((axis, n.value) for axis, n in sizes.items()), sizes)
    memory = constant_memory(launch.source, launch.kernel)
    return Inference(axes, reading.arguments(), tuple(distinct.values()), memory)


class _Reading:
    def __init__(
        self,
        launch: HostLaunch,
        axes: Axes,
        tuned: LaunchDraft,
        choices: Sequence[TunableConstant],
        hosts: Sequence[Host],
    ) -> None:
        self.launch, self.axes, self.hosts = launch, axes, hosts
        self.types, self.passed = launch.types(), launch.passed
        self.sizes = [numbers_of(launch, axes, host) for host in hosts]
        own = {parameter.name for parameter in launch.kernel.parameters}
        own |= {constant.name for constant in launch.source.constants}
        values = {name: axis for name, axis in axes.names.items() if name in own}
        values |= {c.origin: c.name for c in choices if c.origin is not None}
        values |= {name: text for name, (text, _) in axes.strides.items()}
        self.scope = Scope(values, launch.constants, types=self.types)
        self.grid = tuned.grid or ()
        self.block = (tuned.block or ()) if launch.is_found else ()
        self.tunable = {choice.name for choice in choices}
        self.accesses: dict[str, list[Access]] = {}
        for access in accesses_of(launch.source, launch.kernel):
            self.accesses.setdefault(access.array, []).append(access)
        self.uses = uses_of(launch.source, launch.kernel)

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
                argument = DraftArgument(p, "int64", value=value, evidence=_sure(origin))
            elif p.pointers:
                role, known = self.role(p)
                argument = DraftArgument(p, dtype, role, evidence=(known,))
                if p.name in shapes:
                    shape, evidence = shapes[p.name]
                    argument = replace(argument, shape=shape, evidence=(*evidence, known))
            elif p.name in self.axes.names:
                argument = DraftArgument(p, dtype, value=self.axes.names[p.name])
            elif stated := self.axes.strides.get(p.name):
                evidence = (Evidence(LIKELY, stated[1]),)  # that arrays are contiguous is assumed
                argument = DraftArgument(p, dtype, value=stated[0], evidence=evidence)
            elif stated := self.value(p):
                argument = DraftArgument(p, dtype, value=stated[0], evidence=_sure(stated[1]))
            else:
                argument = DraftArgument(p, dtype)
            found.append(replace(argument, evidence=(*self.guessed(p, dtype), *argument.evidence)))
        return tuple(found)

    def guessed(self, parameter: KernelParameter, dtype: str | None) -> tuple[Evidence, ...]:
        names = [n for n in self.launch.site.guessed if n in IDENTIFIER.findall(parameter.c_type)]
        told = "for no launch says it; `tune init --instantiate` takes another"
        return tuple(
            Evidence(GUESSED, f"dtype {dtype}: {name} is a guess, {told}") for name in names
        )

    def shapes(
        self, arrays: Sequence[KernelParameter]
    ) -> dict[str, tuple[Shape, tuple[Evidence, ...]]]:
        indexed = {p.name: found for p in arrays if (found := self.indexed(p)) is not None}
        shapes: dict[str, tuple[Shape, tuple[Evidence, ...]]] = {}
        for parameter in arrays:
            name, numbers = parameter.name, tuple[Evidence, ...]()
            memory, index = self.allocated(parameter), indexed.get(name)
            if memory is not None:
                shape, numbers = self.named(memory[0])
                memory = shape, memory[1]
            if index is not None:
                shape, own = self.named(index[0])
                index, numbers = (shape, index[1]), numbers if memory is not None else own
            # the memory says how much, in any order; the index which way round
            if memory is None and index is None:
                continue
            if memory is None or (index is not None and sorted(index[0]) == sorted(memory[0])):
                shape, origin = index or ((), "")
                sure = memory is not None
                also = f"{memory[1]}; " if memory is not None else ""
                evidence = Evidence(SURE if sure else LIKELY, f"{also}{origin}")
            else:
                shape, evidence = self.ordered(name, *memory, indexed)
            shapes[name] = shape, (evidence, *numbers)
        return shapes

    def ordered(
        self, name: str, memory: Shape, origin: str, indexed: Mapping[str, ShapeAndOrigin]
    ) -> tuple[Shape, Evidence]:
        # rows * cols and cols * rows are the same memory; how far apart elements are tells them
        if not 2 <= len(memory) <= _MOST_ORDERED:
            return memory, Evidence(SURE if name not in indexed else LIKELY, origin)
        strides, line = self.strides(name)
        fitting = [
            order
            for order in dict.fromkeys(permutations(memory))
            if strides <= {product(order[place:]) for place in range(1, len(order))}
        ]
        if strides and memory in fitting:
            return memory, Evidence(LIKELY, f"{origin}, in its order as in line {line}")
        if strides and len(fitting) == 1:
            return fitting[0], Evidence(LIKELY, f"{origin}, in the order of line {line}")
        if strides:
            return memory, Evidence(GUESSED, f"{origin}, in its order, which line {line} is not in")
        others = {s: one for one, (s, _) in indexed.items() if sorted(s) == sorted(memory)}
        if len(others) == 1:
            shape, other = next(iter(others.items()))
            return shape, Evidence(GUESSED, f"{origin}, in the order of {other}")
        return memory, Evidence(GUESSED, f"{origin}, in its order")

    def strides(self, name: str) -> tuple[set[str], int]:
        """Find what the indices of an array multiply by, as far as axes say it; and a line."""
        found: set[str] = set()
        line = 0
        for access in self.accesses.get(name, []):
            if access.index is None:
                continue
            own = {s for s in self.site(access).strides(access.index) if IDENTIFIER.search(s)}
            line = line or (access.line if own else 0)
            found |= own
        return found, line

    def named(self, shape: Shape) -> tuple[Shape, tuple[Evidence, ...]]:
        """Put an axis in the place of a number that it always has; tell the numbers that stay."""
        if not self.axes.names or not any(extent.isdigit() for extent in shape):
            return shape, ()
        extents, notes = list[str](), []
        for extent in shape:
            axes = self.axes_of(int(extent)) if extent.isdigit() else (extent,)
            if axes and axes != (extent,):
                told = f"{extent} is {' * '.join(axes)} wherever it is launched"
                notes.append(Evidence(LIKELY, told))
            elif extent.isdigit() and int(extent) > 1:
                notes.append(Evidence(GUESSED, f"{extent} is a number in the source, no axis"))
            extents += axes or (extent,)
        return tuple(extents), tuple(notes)

    def axes_of(self, number: int) -> tuple[str, ...]:
        """Find the only axes whose product is a number on every way to the launch."""
        names = [*self.axes.names.values()]
        own = [known for known in self.sizes if {*names} <= {*known}]
        if number < _LEAST_TELLING or not own:
            return ()
        found = [
            axes
            for count in range(1, min(len(names), _MOST_FACTORS) + 1)
            for axes in combinations(names, count)
            if all(prod(known[axis].value for axis in axes) == number for known in own)
        ]
        return found[0] if len(found) == 1 else ()

    def indexed(self, parameter: KernelParameter) -> ShapeAndOrigin | None:
        if dtype_of(parameter.c_type, self.types) is None:
            return None
        accesses = self.accesses.get(parameter.name, [])
        telling = [access for access in accesses if access.index != "0"] or accesses
        shapes = {self.shape(access) for access in telling}
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is None:
            return None
        code = f"{parameter.name}[{telling[0].index}]"
        code = code if len(code) <= _LONGEST_CODE else f"{code[:_LONGEST_CODE]}..."
        return shape, f"indexed in line {telling[0].line}: {code}"

    def shape(self, access: Access) -> Shape | None:
        # the dimensions that an index runs over; no shape may depend on what is tuned
        if access.index is None:
            return None
        shape = tuple(undivided(self.site(access).dimensions(access.index) or ()))
        named = {name for extent in shape for name in IDENTIFIER.findall(extent)}
        return None if not shape or named & self.tunable else shape

    def site(self, access: Access) -> Site:
        body, masked = (self.launch.kernel.body,), self.launch.source.masked
        variables = assigned(masked, body, access.at, access.loop_end)
        known = {name: value.text for name, value in variables.items()}
        return Site(self.scope, self.grid, self.block, access.bounds, known)

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

    def value(self, parameter: KernelParameter) -> Stated | None:
        if not parameter.name or parameter.name not in self.passed:
            return None
        if parameter.name in self.launch.varying:
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
            return repr(float(literal[1])), origin
        return None

    def absent(self, parameter: KernelParameter) -> Stated | None:
        if not parameter.name or parameter.pointers != 1 or parameter.name not in self.passed:
            return None
        passed = self.passed[parameter.name]
        found = {pointer_text(host.followed(passed)[0]) for host in self.hosts}
        if not found or not found <= {*_NULL}:
            return None
        return "0", f"a null pointer, line {self.hosts[0].path[0].line}"

    def role(self, parameter: KernelParameter) -> tuple[str, Evidence]:
        use = self.uses.get(parameter.name, Use())
        read, written = use.read, use.written
        if parameter.const or not parameter.name:
            return ("input" if parameter.name else "output"), Evidence(SURE, "const")
        if use.handed is not None and (read is None or written is None):
            by, line = use.handed
            told = f"{use.role} by the name of {by}" if use.assumed else f"handed to {by}"
            return use.role, Evidence(GUESSED, f"{told}, line {line}")
        if read is None and written is None:
            return use.role, Evidence(GUESSED, "nothing here reads or writes it")
        if read is None or written is None:
            return use.role, Evidence(
                SURE,
                f"written, line {written}" if written else f"read, line {read}, and not written",
            )
        told = f"read, line {read}, and written, line {written}"
        # Its own results may be all that it reads.
        return use.role, Evidence(LIKELY if written < read else SURE, told)


def _sure(origin: str) -> tuple[Evidence, ...]:
    return (Evidence(SURE, origin),) if origin else ()
