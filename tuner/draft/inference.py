"""What the source says of sizes, shapes, values and roles, each with the line that says it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.draft.choices import TunableConstant
from tuner.draft.host_values import Host, HostLaunch, Number, plain
from tuner.draft.launches import Axes, LaunchDraft, numbers_of
from tuner.draft.translate import Scope, parse_expression, translate
from tuner.model.kernel import DTYPE_BYTES
from tuner.source.accesses import Access, Bound, accesses_of, assigned, bare
from tuner.source.facts import IDENTIFIER, KernelParameter
from tuner.source.kernels import dtype_of, element_dtype
from tuner.source.launches import Allocation, allocations_in
from tuner.source.syntax import Node, number, text_of

_MAX_DEPTH = 12
_BUILTIN = re.compile(r"(blockIdx|threadIdx)\.([xyz])")

Shape = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexSite:
    """What the names in an index mean where it is, and what bounds them there."""

    scope: Scope
    grid: Shape
    block: Shape
    bounds: tuple[Bound, ...]
    variables: Mapping[str, str]

    def dimensions(self, text: str, depth: int) -> Shape | None:
        """List the extents that an index runs over, the major one first; None where unknown."""
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

    def translated(self, text: str) -> str | None:
        known = {**self.variables, **self.scope.definitions}
        return translate(text, replace(self.scope, definitions=known))


def _undivided(shape: Shape) -> Iterator[str]:
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


@dataclass(frozen=True, slots=True)
class DraftArgument:
    """One argument as far as it is known; `role` is None for a scalar, the others if unknown."""

    parameter: KernelParameter
    dtype: str | None
    role: str | None = None
    shape: Shape | None = None
    value: str | None = None
    origin: str = ""


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
    """Find out what can be known of arguments and workloads; `tuned` is the template's launch."""
    reading = _Reading(launch, axes, tuned, choices, hosts)
    distinct: dict[tuple[tuple[str, int], ...], Mapping[str, Number]] = {}
    for sizes in reading.sizes:
        distinct.setdefault(tuple((axis, n.value) for axis, n in sizes.items()), sizes)
    return Inference(axes, reading.arguments(), tuple(distinct.values()))


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
            else:
                axis = self.axes.names.get(p.name)
                told = (axis, "") if axis is not None else self.value(p)
                told = self.axes.strides.get(p.name, told)
                argument = DraftArgument(p, dtype, None, None, *(told or (None, "")))
            found.append(argument)
        return tuple(found)

    def shapes(self, arrays: Sequence[KernelParameter]) -> dict[str, ShapeAndOrigin]:
        indexed = {p.name: found for p in arrays if (found := self.indexed(p)) is not None}
        shapes: dict[str, ShapeAndOrigin] = {}
        for parameter in arrays:
            memory, index = self.allocated(parameter), indexed.get(parameter.name)
            # the memory says how much, in any order; the index which way round
            if memory is None:
                shapes |= {} if index is None else {parameter.name: index}
            elif index is None or sorted(index[0]) != sorted(memory[0]):
                shapes[parameter.name] = _ordered(*memory, indexed)
            else:
                shapes[parameter.name] = memory if index[0] == memory[0] else index
        return shapes

    def indexed(self, parameter: KernelParameter) -> ShapeAndOrigin | None:
        if dtype_of(parameter.c_type, self.types) is None:
            return None
        accesses = self.accesses.get(parameter.name, [])
        telling = [access for access in accesses if access.index != "0"] or accesses
        shapes = {self.shape(access) for access in telling}
        shape = shapes.pop() if len(shapes) == 1 else None
        return None if shape is None else (shape, f"as it is indexed, line {telling[0].line}")

    def shape(self, access: Access) -> Shape | None:
        # the dimensions that an index runs over; no shape may depend on what is tuned
        if access.index is None:
            return None
        variables = assigned(self.launch.source.masked, (self.launch.kernel.body,), access.at)
        known = {name: value.text for name, value in variables.items()}
        site = IndexSite(self.scope, self.grid, self.block, access.bounds, known)
        shape = tuple(_undivided(site.dimensions(access.index, 0) or ()))
        named = {name for extent in shape for name in IDENTIFIER.findall(extent)}
        return None if not shape or named & self.tunable else shape

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

    def role(self, parameter: KernelParameter) -> str:
        if parameter.const or not parameter.name:
            return "input" if parameter.name else "output"
        accesses = self.accesses.get(parameter.name, [])
        if all(access.index is not None for access in accesses):
            if accesses and not any(access.writes for access in accesses):
                return "input"
            return "inout" if any(access.reads for access in accesses) else "output"
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
