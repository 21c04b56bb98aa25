"""What the source says of sizes, shapes, values and roles, each with the line that says it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations, takewhile
from math import prod

from tuner.draft.choices import TunableConstant
from tuner.draft.guesses import LARGEST, enumerators, stated_default, summed_products, usual
from tuner.draft.host_values import INTEGERS, Host, HostLaunch, Number, plain
from tuner.draft.indices import Shape, Site, product, undivided, widest
from tuner.draft.launches import Axes, LaunchDraft, numbers_of
from tuner.draft.memory import allocated_shape, pointer_text
from tuner.draft.translate import Scope, translate
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES
from tuner.source.accesses import assigned, bare
from tuner.source.facts import IDENTIFIER, KernelParameter, LineIndex
from tuner.source.kernels import dtype_of, element_dtype, lanes_of
from tuner.source.reaches import Reach, own_arrays, reaches_of
from tuner.source.uses import ConstantMemory, Use, constant_memory, uses_of

_NULL = ("nullptr", "NULL", "0")
_FLOAT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?")

# a text as the file states it, and where the source says so
Stated = tuple[str, str]
ShapeAndOrigin = tuple[Shape, str]
# a shape, with how sure an index makes it and which one
Indexed = tuple[Shape, Stated]
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
    extreme: str = ""
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
    arguments = reading.arguments()
    # what indices are below is an axis of its own where nothing else says it
    used = {name for a in arguments for e in a.shape or () for name in IDENTIFIER.findall(e)}
    below = {name: name for name in reading.tables.values() if name in used}
    axes = replace(axes, names={**axes.names, **below})
    return Inference(axes, arguments, tuple(distinct.values()), memory)


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
        self.block = tuned.block or ()
        self.tunable = {choice.name for choice in choices}
        self.reaches: dict[str, list[Reach]] = {}
        self.own = own_arrays(launch.source, launch.kernel)
        for reach in reaches_of(launch.source, launch.kernel, self.types, self.own):
            self.reaches.setdefault(reach.array, []).append(reach)
        self.uses = uses_of(launch.source, launch.kernel)
        whole = [p for p in launch.kernel.parameters if p.pointers == 1 and p.name]
        whole = [p for p in whole if dtype_of(p.c_type, self.types) in INTEGERS]
        self.tables = {p.name: f"{p.name}_below" for p in whole}

    def arguments(self) -> tuple[DraftArgument, ...]:
        parameters = self.launch.kernel.parameters
        absent = {p.name: told for p in parameters if (told := self.absent(p)) is not None}
        arrays = [p for p in parameters if p.name and p.pointers == 1 and p.name not in absent]
        shapes = self.shapes(arrays)
        fills, limit = {**self.own_fills(), **self.fills(shapes)}, self.limit()
        found: list[DraftArgument] = []
        for p in parameters:
            dtype = element_dtype(p.c_type, self.types) if p.pointers < 2 else None
            if p.name in absent:
                value, origin = absent[p.name]
                argument = DraftArgument(p, "int64", value=value, evidence=_sure(origin))
            elif p.pointers:
                role, known = self.role(p)
                argument = DraftArgument(p, dtype, role, evidence=(known,))
                if p.name in fills and role in ("input", "inout"):
                    fill, points = fills[p.name]
                    known = replace(known, certainty=GUESSED, text=f"{known.text}; {points}")
                    argument = replace(argument, fill=fill, evidence=(known,))
                if p.name in shapes:
                    shape, evidence = shapes[p.name]
                    argument = replace(argument, shape=shape, evidence=(*evidence, known))
                if dtype in ("float32", "bfloat16") and role in ("input", "inout"):
                    argument = replace(argument, extreme=limit)
            elif p.name in self.axes.names:
                argument = DraftArgument(p, dtype, value=self.axes.names[p.name])
            elif stated := self.axes.strides.get(p.name):
                evidence = (Evidence(LIKELY, stated[1]),)  # that arrays are contiguous is assumed
                argument = DraftArgument(p, dtype, value=stated[0], evidence=evidence)
            elif stated := self.value(p):
                argument = DraftArgument(p, dtype, value=stated[0], evidence=_sure(stated[1]))
            else:
                argument = self.guessed(p, dtype, [one.value for one in found if one.value])
            evidence = (*self.guessed_dtype(p, dtype), *argument.evidence)
            found.append(replace(argument, evidence=evidence))
        return tuple(found)

    def guessed_dtype(self, parameter: KernelParameter, dtype: str | None) -> tuple[Evidence, ...]:
        names = [n for n in self.launch.site.guessed if n in IDENTIFIER.findall(parameter.c_type)]
        told = "for no launch says it; `tune init --instantiate` takes another"
        return tuple(
            Evidence(GUESSED, f"dtype {dtype}: {name} is a guess, {told}") for name in names
        )

    def limit(self) -> str:
        """Say where extreme inputs end, if a right kernel overflows and its reference does not."""
        masked, span = self.launch.source.masked, self.launch.kernel.body
        floats = [name for name, text in self.types.items() if dtype_of(text, {}) == "float32"]
        found = summed_products(masked, span, floats)
        if found is None:
            return ""
        at, what = found
        end = f"largest: {LARGEST}, " if what == "squares" else ""
        of = "" if what == "numbers" else " in float32"
        reason = f"a guess: {what} are summed{of} in line {LineIndex(masked).at(at)}"
        return f'{{{end}reason: "{reason}"}}'

    def fills(self, shapes: Mapping[str, tuple[Shape, object]]) -> dict[str, Stated]:
        """Find what indices have to be below: the rows of the array that they point into."""
        found: dict[str, Stated] = {}
        for name, (shape, _) in shapes.items():
            for reach in self.reaches.get(name, []):
                for table in self.site(reach).pointed(reach.index):
                    plainly = reach.writes and not reach.reads
                    fill = f"{'distinct' if plainly else 'indices'}({shape[0]})"
                    found.setdefault(table, (fill, f"points into {name}, line {reach.line}"))
        return found

    def own_fills(self) -> dict[str, Stated]:
        """Find what is below the size of an array of the kernel's own, as the bins of a histogram.

        Of an array whose size the launch says, it is what other indices run over.
        """
        found: dict[str, Stated] = {}
        for array in self.own:
            reaches = self.reaches.get(array.name, [])
            pointed = {reach: self.site(reach).pointed(reach.index) for reach in reaches}
            if array.size:
                stated = translate(array.size, self.scope)
                shapes = {self.untuned((stated,) if stated else ())}
            else:
                shapes = {self.shape(reach) for reach in reaches if not pointed[reach]}
            below = [shape[0] for shape in shapes if shape is not None and len(shape) == 1]
            for reach, tables in pointed.items() if len(below) == 1 else ():
                for table in tables:
                    told = f"points into {array.name}, line {reach.line}"
                    found.setdefault(table, (f"indices({below[0]})", told))
        return found

    def guessed(
        self, parameter: KernelParameter, dtype: str | None, besides: Collection[str]
    ) -> DraftArgument:
        """Give a number that no launch states a usual value, and say so."""
        masked = self.launch.source.masked
        options = enumerators(masked, parameter.c_type) if dtype is None else None
        if options:
            named = {host.followed(self.passed.get(parameter.name, ""))[0] for host in self.hosts}
            known = {name.rsplit("::", 1)[-1] for name in named} & options.keys()
            name = known.pop() if len(known) == 1 else next(iter(options))
            certainty = GUESSED if len(named) != 1 or name not in " ".join(named) else SURE
            evidence = (Evidence(certainty, f"{name}, one of {', '.join(options)}"),)
            return DraftArgument(parameter, "int32", value=str(options[name]), evidence=evidence)
        if dtype is None or not parameter.name:
            return DraftArgument(parameter, dtype)
        passed = self.passed.get(parameter.name, "")
        names = {parameter.name, plain(passed), plain(self.launch.followed(passed))}
        stated = stated_default(masked, tuple(sorted(names)))
        if stated is not None:
            told = f"the default in line {LineIndex(masked).at(stated[1])}"
            evidence = (Evidence(LIKELY, told),)
            return DraftArgument(parameter, dtype, value=stated[0], evidence=evidence)
        evidence = (Evidence(GUESSED, "a usual number, for whoever calls the host code says it"),)
        value = usual(parameter.name, dtype, besides)
        return DraftArgument(parameter, dtype, value=value, evidence=evidence)

    def shapes(
        self, arrays: Sequence[KernelParameter]
    ) -> dict[str, tuple[Shape, tuple[Evidence, ...]]]:
        indexed = {p.name: found for p in arrays if (found := self.indexed(p)) is not None}
        shapes: dict[str, tuple[Shape, tuple[Evidence, ...]]] = {}
        for parameter in arrays:
            name, numbers = parameter.name, tuple[Evidence, ...]()
            if sized := self.sized(parameter):
                shapes[name] = sized, (Evidence(SURE, "the sizes of PyTorch's accessor"),)
                continue
            memory, index = self.allocated(parameter), indexed.get(name)
            if memory is not None and index is not None and index[1][0] == GUESSED:
                index = None
            if memory is not None:
                shape, numbers = self.named(memory[0])
                memory = shape, memory[1]
            if index is not None:
                shape, own = self.named(index[0])
                index, numbers = (shape, index[1]), numbers if memory is not None else own
            # the memory says how much, in any order; the index which way round
            if memory is None and index is None:
                continue
            if memory is None or (index is not None and self.agree(index[0], memory[0])):
                shape, (certainty, origin) = index or ((), (GUESSED, ""))
                also = f"{memory[1]}; " if memory is not None else ""
                evidence = Evidence(SURE if memory is not None else certainty, f"{also}{origin}")
            else:
                known = {n: one for n, one in indexed.items() if one[1][0] != GUESSED}
                shape, evidence = self.ordered(name, *memory, known)
            shapes[name] = shape, (evidence, *numbers)
        return shapes

    def agree(self, one: Shape, other: Shape) -> bool:
        """Tell whether two shapes hold as many elements, on every way to the launch."""
        if sorted(one) == sorted(other):
            return True
        known = [{axis: n.value for axis, n in sizes.items()} for sizes in self.sizes]
        whole = [Expression.parse(" * ".join(f"({e})" for e in shape)) for shape in (one, other)]
        if not known or any(w.names - sizes.keys() for w in whole for sizes in known):
            return False
        return all(whole[0].integer(sizes) == whole[1].integer(sizes) for sizes in known)

    def sized(self, parameter: KernelParameter) -> Shape:
        # what an accessor became (extract/accessors.py)
        names = [p.name for p in self.launch.kernel.parameters]
        after = names[names.index(parameter.name) + 1 :]
        own = takewhile(lambda pair: pair[1] == f"{parameter.name}_n{pair[0]}", enumerate(after))
        return tuple(self.axes.names.get(name, name) for _, name in own)

    def ordered(
        self, name: str, memory: Shape, origin: str, indexed: Mapping[str, Indexed]
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
        for access in self.reaches.get(name, []):
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

    def indexed(self, parameter: KernelParameter) -> Indexed | None:
        """Find the one shape that all indices agree on, or that has all others inside."""
        if element_dtype(parameter.c_type, self.types) is None:
            return None
        lanes = lanes_of(parameter.c_type, self.types)
        reaches = self.reaches.get(parameter.name, [])
        telling = [reach for reach in reaches if reach.index != "0"] or reaches
        if telling and all(reach.exact and reach.index.isdigit() for reach in telling):
            # numbers one by one, as an optimizer's
            last = max(telling, key=lambda reach: int(reach.index))
            shape = (str(int(last.index) + 1), *([str(lanes)] if lanes > 1 else []))
            code = f"{parameter.name}[{last.index}]"
            return shape, (LIKELY, f"indexed in line {last.line}: {code}")
        exact = [self.shape(reach) if reach.exact else None for reach in telling]
        found = [
            (shape, reach)
            for shape, reach in (
                (own or self.spaced(r), r) for own, r in zip(exact, telling, strict=True)
            )
            if shape is not None
        ]
        if not found:
            return None
        shapes = dict(reversed(found))
        shapes = {one: shapes[one] for one in widest([*shapes])}
        shape = max(shapes, key=lambda one: len(product(one).split(" * ")))
        whole = Counter(product(shape).split(" * "))
        if any(Counter(product(one).split(" * ")) - whole for one in shapes):
            return None
        reach = shapes[shape]
        # what leaves out the edge of an array says nothing of the edge
        is_inner = any(re.search(r" - \d+$", extent) for extent in shape)
        certain = (
            not is_inner
            and None not in exact
            and widest([one for one in {*exact} if one]) == [shape]
        )
        code = f"{parameter.name}[{reach.index}]"
        code = code if len(code) <= _LONGEST_CODE else f"{code[:_LONGEST_CODE]}..."
        how = "indexed" if reach.exact else "handed on"
        shape = (*shape, str(lanes)) if lanes > 1 else shape
        return shape, (LIKELY if certain else GUESSED, f"{how} in line {reach.line}: {code}")

    def shape(self, reach: Reach) -> Shape | None:
        return self.untuned(tuple(undivided(self.site(reach).dimensions(reach.index) or ())))

    def spaced(self, reach: Reach) -> Shape | None:
        """Go by how far apart rows are, or by how many elements are handed on."""
        site = self.site(reach)
        shape = site.counted(reach.index, reach.counts) or site.spaced(reach.index)
        if shape is None and reach.index != "0":
            shape = site.dimensions(reach.index)
        return self.untuned(shape or ())

    def untuned(self, shape: Shape) -> Shape | None:
        # no shape may depend on what is tuned
        named = {name for extent in shape for name in IDENTIFIER.findall(extent)}
        return None if not shape or named & self.tunable else shape

    def site(self, reach: Reach) -> Site:
        body, masked = (self.launch.kernel.body,), self.launch.source.masked
        variables = assigned(masked, body, reach.at, reach.loop_end)
        known = {name: self.without_flat(value.text) for name, value in variables.items()}
        tuned = frozenset(self.tunable)
        return Site(self.scope, self.grid, self.block, reach.bounds, known, tuned, self.tables)

    def without_flat(self, text: str) -> str:
        # a block of one row has threadIdx.y of 0
        flat = "xyz"[len(self.block) :] if self.block else ""
        if not flat:
            return text
        text = re.sub(rf"\s*\*\s*blockDim\.[{flat}]|\bblockDim\.[{flat}]\s*\*\s*", "", text)
        return re.sub(rf"\s*\+\s*threadIdx\.[{flat}]|\bthreadIdx\.[{flat}]\s*\+\s*", "", text)

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
        reaches = self.reaches.get(parameter.name, [])
        scattered = [r for r in reaches if r.writes and self.site(r).pointed(r.index)]
        if read is None and scattered:
            told = f"written only where others point, line {scattered[0].line}"
            return "inout", Evidence(GUESSED, told)
        if read is None or written is None:
            return use.role, Evidence(
                SURE,
                f"written, line {written}" if written else f"read, line {read}, and not written",
            )
        told = f"read, line {read}, and written, line {written}"
        if reads_own_results(reaches, self.launch.source.masked):
            return "output", Evidence(LIKELY, f"{told}: its own results")
        looped = any(one.writes and one.loop_end for one in reaches)
        return use.role, Evidence(LIKELY if written < read or looped else SURE, told)


def reads_own_results(reaches: Sequence[Reach], masked: str) -> bool:
    """Tell whether all that is read of an array was written before, as far as indices tell."""
    written = [one for one in reaches if one.writes and not one.reads]
    if not written or not all(one.exact for one in reaches):
        return False
    first = min(written, key=lambda one: one.at)
    return all(_is_own(one, first, masked) for one in reaches if one.reads)


def _is_own(read: Reach, written: Reach, masked: str) -> bool:
    if bare(read.index) == bare(written.index):
        return ";" in masked[written.at : read.at]
    # of y[k], each y[j] with j < k
    earlier = (
        re.sub(rf"(?<![\w.]){re.escape(bound.what)}\b", bound.limit, read.index)
        for bound in read.bounds
        if IDENTIFIER.fullmatch(bound.what) and IDENTIFIER.fullmatch(bound.limit)
    )
    return any(bare(index) == bare(written.index) for index in earlier)


def _sure(origin: str) -> tuple[Evidence, ...]:
    return (Evidence(SURE, origin),) if origin else ()
