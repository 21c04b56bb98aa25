"""What the source says of sizes, values and roles, each with the line that says it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.extensions.draft.array_access import Access, Use
from tuner.extensions.draft.arrays import Arrays, Stated, pointer_text
from tuner.extensions.draft.guesses import (
    CERTAINTIES,
    FLOAT,
    GUESSED,
    LIKELY,
    SURE,
    Evidence,
    enumerators,
    stated_default,
    usual,
)
from tuner.extensions.draft.host_path import Host, Number, plain
from tuner.extensions.draft.host_values import HostLaunch
from tuner.extensions.draft.indices import Shape
from tuner.extensions.draft.launches import Axes, LaunchDraft
from tuner.extensions.draft.tunables import TunableConstant
from tuner.model.kernel import FLOAT_DTYPES
from tuner.source.accesses import bare, find_assignments
from tuner.source.facts import IDENTIFIER, KernelParameter, LineIndex
from tuner.source.kernels import dtype_of, element_dtype
from tuner.source.syntax import number
from tuner.source.unsupported import ConstantMemory, constant_memory

_NULL = ("nullptr", "NULL", "0")
_COUNTS = re.compile(r"[*/%<]=?\s*\(?(?=([A-Za-z_]\w*))|([A-Za-z_]\w*)\s*(?=[*/%>])")
# `row[i + 1]`, and no rounding up
_INNER = re.compile(r"[\w)]\s*\+\s*[1-9]\d*\s*(?:$|\)(?!\s*[/%]))")
_MOST_HOPS = 4
_MOST_AXES = 10


@dataclass(frozen=True, slots=True)
class DraftArgument:
    """One argument as far as it is known; `role` is None for a scalar, the others if unknown."""

    parameter: KernelParameter
    dtype: str | None
    role: str | None = None
    shape: Shape | None = None
    value: str | None = None
    evidence: tuple[Evidence, ...] = ()
    origin: str = ""
    fill: str = ""
    deterministic: bool = True
    constant: bool = False
    note: str = ""

    @property
    def certainty(self) -> str:
        """That of the least sure evidence."""
        known = (evidence.certainty for evidence in self.evidence)
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
        return tuple(size for size in self.sizes if axes and len(size) == len(axes))


def infer(
    launch: HostLaunch,
    axes: Axes,
    tuned: LaunchDraft,
    choices: Sequence[TunableConstant],
    hosts: Sequence[Host],
) -> Inference:
    """Find out what can be known of arguments and workloads; `tuned` is the template's launch."""
    arrays = Arrays(launch, axes, tuned, choices, hosts)
    memory = constant_memory(launch.source, launch.kernel)
    reading = _Reading(launch, axes, hosts, arrays)
    axes, arguments = reading.without_loose_axes(reading.arguments(), tuned, choices)
    distinct: dict[tuple[tuple[str, int], ...], Mapping[str, Number]] = {}
    fixed = {axes.names[c.name]: Number(int(c.number or 0), c.line) for c in axes.fixed.values()}
    for size in arrays.sizes or [fixed] * bool(fixed):
        sizes = {axis: n for axis, n in size.items() if axis in axes.names.values()}
        distinct.setdefault(tuple((axis, n.value) for axis, n in sizes.items()), sizes)
    # what indices are below is an axis of its own where nothing else says it
    used = {name for a in arguments for e in a.shape or () for name in IDENTIFIER.findall(e)}
    own = (*arrays.tables.values(), *arrays.lasts.values())
    below = {name: name for name in own if name in used}
    axes = replace(axes, names={**axes.names, **below})
    return Inference(axes, arguments, tuple(distinct.values()), memory)


class _Reading:
    def __init__(
        self, launch: HostLaunch, axes: Axes, hosts: Sequence[Host], arrays: Arrays
    ) -> None:
        self.launch, self.axes, self.hosts = launch, axes, hosts
        self.types, self.passed, self.arrays = launch.types(), launch.passed, arrays

    def arguments(self) -> tuple[DraftArgument, ...]:
        parameters = self.launch.kernel.parameters
        absent = {p.name: told for p in parameters if (told := self.absent(p)) is not None}
        arrays = [p for p in parameters if p.name and p.pointers == 1 and p.name not in absent]
        shapes = self.arrays.shapes(arrays)
        fills = self.arrays.fills(shapes)
        drafted: list[DraftArgument] = []
        for p in parameters:
            dtype = element_dtype(p.c_type, self.types) if p.pointers < 2 else None
            # what is written may be floats, whose rounding no comparison of bytes allows
            if self.is_bytes(p) and not (p.pointers and self.role(p)[0] == "input"):
                dtype = None
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
                if line := self.summed_in_any_order(p.name, dtype):
                    how = f"added to by atomics in any order, line {line}"
                    evidence = (*argument.evidence, Evidence(LIKELY, how))
                    argument = replace(argument, deterministic=False, evidence=evidence)
            elif p.name in self.axes.names:
                argument = DraftArgument(p, dtype, value=self.axes.names[p.name])
            elif stated := self.axes.strides.get(p.name):
                evidence = (Evidence(LIKELY, stated[1]),)  # that arrays are contiguous is assumed
                argument = DraftArgument(p, dtype, value=stated[0], evidence=evidence)
            elif stated := self.value(p):
                argument = DraftArgument(p, dtype, value=stated[0], evidence=_sure(stated[1]))
            else:
                argument = self.guess_argument(p, dtype, [a.value for a in drafted if a.value])
            evidence = (*self.guessed_dtype(p, dtype), *argument.evidence)
            drafted.append(replace(argument, evidence=evidence))
        return tuple(drafted)

    def without_loose_axes(
        self,
        arguments: tuple[DraftArgument, ...],
        tuned: LaunchDraft,
        choices: Sequence[TunableConstant],
    ) -> tuple[Axes, tuple[DraftArgument, ...]]:
        """Give numbers that size nothing, such as an offset or a mode, a value and no axis."""
        texts = [*(tuned.grid or ("",)), *(tuned.block or ()), *(tuned.cluster or ())]
        texts.append(tuned.shared_memory or "")
        texts += [text for choice in choices for text in choice.constraints]
        texts += [text for a in arguments for text in (*(a.shape or ()), a.fill)]
        texts += [a.value or "" for a in arguments if a.parameter.name not in self.axes.names]
        texts += [text for text, _ in self.axes.strides.values()]
        used = {name for text in texts for name in IDENTIFIER.findall(text)}
        # what is counted up to, or says how long a row is, is a size
        source = self.launch.source
        pairs = (_COUNTS.findall(source.masked, *s) for s in source.reachable([self.launch.kernel]))
        counts = {name for found in pairs for pair in found for name in pair}
        # which of several processes this is; a `rank` that a loop counts up to is a size
        counts -= {
            n
            for n in counts
            if usual(n, "int32") == "0" and not re.search(rf"<=?\s*{n}\b", self.launch.code)
        }
        unused = [name for name, axis in self.axes.names.items() if axis not in used]
        numbers = {a.parameter.name for a in arguments}
        loose = {name for name in unused if name in numbers - counts - self.launch.varying}
        open_ones = any(a.role is not None and a.shape is None for a in arguments)
        if open_ones or tuned.grid is None or loose >= self.axes.names.keys():
            loose = set()
        # of more sizes than anybody tunes for, the last that nothing else is computed from
        surplus = [name for name in unused if name in numbers - loose]
        surplus.sort(key=lambda name: name not in counts)
        most = len(self.axes.names) - len(loose) - _MOST_AXES
        left = {*surplus[-most:]} if most > 0 else set()
        names = {n: axis for n, axis in self.axes.names.items() if n not in loose | left}
        drafted = []
        for a in arguments:
            name = a.parameter.name
            if name not in loose | left:
                drafted.append(a)
            elif stated := self.value(a.parameter):
                drafted.append(replace(a, value=stated[0], evidence=_sure(stated[1])))
            elif name in left:
                why = f"no axis, for the kernel has more than {_MOST_AXES} sizes"
                blank = DraftArgument(a.parameter, a.dtype, evidence=(Evidence(GUESSED, why),))
                drafted.append(blank)
            else:
                drafted.append(self.guess_argument(a.parameter, a.dtype, ()))
        return replace(self.axes, names=names), tuple(drafted)

    def summed_in_any_order(self, name: str, dtype: str | None) -> int:
        """Give the line where atomics add floats, whose sum rounds as they come; 0 for none."""
        reaches = self.arrays.reaches.get(name, []) if dtype in FLOAT_DTYPES else []
        return next((reach.line for reach in reaches if reach.adds), 0)

    def is_bytes(self, parameter: KernelParameter) -> bool:
        """Whether its elements are structs of several types."""
        return self.types.get(parameter.c_type, "").startswith("uchar")

    def guessed_dtype(self, parameter: KernelParameter, dtype: str | None) -> tuple[Evidence, ...]:
        if dtype is not None and self.is_bytes(parameter):
            note = f"the bytes of {parameter.c_type}, which inputs() has to fill"
            return (Evidence(GUESSED, note),)
        names = [n for n in self.launch.site.guessed if n in IDENTIFIER.findall(parameter.c_type)]
        note = "is a guess, for no launch says it; `tune init --instantiate` takes another"
        return tuple(Evidence(GUESSED, f"dtype {dtype}: {name} {note}") for name in names)

    def guess_argument(
        self, parameter: KernelParameter, dtype: str | None, besides: Collection[str]
    ) -> DraftArgument:
        """Give a number that no launch states a usual value, and say so."""
        masked = self.launch.source.masked
        options = enumerators(masked, parameter.c_type) if dtype is None else None
        if options:
            named = {host.follow(self.passed.get(parameter.name, ""))[0] for host in self.hosts}
            known = {name.rsplit("::", 1)[-1] for name in named} & options.keys()
            name = known.pop() if len(known) == 1 else next(iter(options))
            certainty = GUESSED if len(named) != 1 or name not in " ".join(named) else SURE
            evidence = (Evidence(certainty, f"{name}, one of {', '.join(options)}"),)
            return DraftArgument(parameter, "int32", value=str(options[name]), evidence=evidence)
        if dtype is None or not parameter.name:
            return DraftArgument(parameter, dtype)
        passed = self.passed.get(parameter.name, "")
        names = {parameter.name, plain(passed), plain(self.launch.follow(passed))}
        stated = stated_default(masked, tuple(sorted(names)))
        if stated is not None:
            note = f"the default in line {LineIndex(masked).at(stated[1])}"
            evidence = (Evidence(LIKELY, note),)
            return DraftArgument(parameter, dtype, value=stated[0], evidence=evidence)
        evidence = (Evidence(GUESSED, "a usual number, for whoever calls the host code says it"),)
        value = usual(parameter.name, dtype, besides)
        divides = rf"[/%]\s*\(?\s*(?:\(\w+\)\s*)?{parameter.name}\b"
        if value == "0" and re.search(divides, self.launch.code):
            value = "1"
        return DraftArgument(parameter, dtype, value=value, evidence=evidence)

    def value(self, parameter: KernelParameter) -> Stated | None:
        if not parameter.name or parameter.name not in self.passed:
            return None
        if parameter.name in self.launch.varying:
            return None
        found = {self._value(parameter, host) for host in self.hosts}
        return found.pop() if len(found) == 1 else None

    def _value(self, parameter: KernelParameter, host: Host) -> Stated | None:
        text, level = host.follow(self.passed[parameter.name])
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
        literal = FLOAT.fullmatch(text)
        return (repr(float(literal[1])), origin) if literal else None

    def absent(self, parameter: KernelParameter) -> Stated | None:
        if not parameter.name or parameter.pointers != 1 or parameter.name not in self.passed:
            return None
        passed = self.passed[parameter.name]
        found = {pointer_text(host.follow(passed)[0]) for host in self.hosts}
        if not found or not found <= {*_NULL}:
            return None
        return "0", f"a null pointer, line {self.hosts[0].path[0].line}"

    def role(self, parameter: KernelParameter) -> tuple[str, Evidence]:
        use = Use.of(self.arrays.reaches.get(parameter.name, []))
        read, written = use.read, use.written
        if (parameter.const and written is None) or not parameter.name:
            return ("input" if parameter.name else "output"), Evidence(SURE, "const")
        if use.handed is not None and (read is None or written is None):
            by, line = use.handed
            note = f"{use.role} by the name of {by}" if use.assumed else f"handed to {by}"
            return use.role, Evidence(GUESSED, f"{note}, line {line}")
        if read is None and written is None:
            return use.role, Evidence(GUESSED, "nothing here reads or writes it")
        reaches = self.arrays.reaches.get(parameter.name, [])
        scattered = [r for r in reaches if r.writes and self.arrays.index_arrays(r)]
        if read is None and scattered:
            note = f"written only where others point, line {scattered[0].line}"
            return "inout", Evidence(GUESSED, note)
        if read is None and self.leaves_border(reaches):
            return "inout", Evidence(GUESSED, f"written within a border alone, line {written}")
        if read is None or written is None:
            how = f"written, line {written}" if written else f"read, line {read}, and not written"
            return use.role, Evidence(SURE, how)
        note = f"read, line {read}, and written, line {written}"
        if reads_own_results(reaches, self.launch.source.masked):
            return "output", Evidence(LIKELY, f"{note}: its own results")
        looped = any(reach.writes and reach.loop_end for reach in reaches)
        return use.role, Evidence(LIKELY if written < read or looped else SURE, note)

    def leaves_border(self, reaches: Sequence[Access]) -> bool:
        """Tell whether all writes are of elements from some place on, not from the first."""
        written = [reach for reach in reaches if reach.writes]
        return bool(written) and all(access.exact and self.is_inner(access) for access in written)

    def is_inner(self, reach: Access) -> bool:
        masked, fixed = self.launch.source.masked, {p.name for p in self.launch.kernel.parameters}
        constants = self.launch.source.constants
        fixed |= {constant.name for constant in constants if constant.number is not None}
        known = find_assignments(masked, (self.launch.kernel.body,), reach.at)
        index = reach.index
        for _ in range(_MOST_HOPS):
            index = IDENTIFIER.sub(lambda m: known[m[0]].text if m[0] in known else m[0], index)
        names = {*IDENTIFIER.findall(reach.index), *IDENTIFIER.findall(index)}
        names |= {n for name in names & {*known} for n in IDENTIFIER.findall(known[name].text)}
        for bound in reach.bounds:
            # `i >= 1` is `1 < i + 1`, where the index is what is above
            least, first = IDENTIFIER.findall(bound.limit), number(bound.what)
            is_above = len(least) == 1 and least[0] in names - fixed
            if is_above and (
                bound.what in fixed
                or (first is not None and (first > 0 or not bound.limit.endswith(") + 1")))
            ):
                return True
        inner = {c.name: str(c.number) for c in constants if c.number}
        index = IDENTIFIER.sub(lambda m: inner.get(m[0], m[0]), index)
        return _INNER.search(index) is not None


def reads_own_results(reaches: Sequence[Access], masked: str) -> bool:
    """Tell whether all that is read of an array was written before, as far as indices tell."""
    written = [reach for reach in reaches if reach.writes and not reach.reads]
    if not written or not all(reach.exact for reach in reaches):
        return False
    first = min(written, key=lambda access: access.at)
    return all(_is_own(reach, first, masked) for reach in reaches if reach.reads)


def _is_own(read: Access, written: Access, masked: str) -> bool:
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
