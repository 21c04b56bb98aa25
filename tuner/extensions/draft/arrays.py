"""What the source says of a kernel's arrays: their shapes, and what whole numbers point into."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations, takewhile
from math import prod

from tuner.extensions.draft.array_access import Access, own_arrays
from tuner.extensions.draft.guesses import GUESSED, LIKELY, SURE, Evidence
from tuner.extensions.draft.host_code import Allocation, allocations_in
from tuner.extensions.draft.host_path import Host, plain
from tuner.extensions.draft.host_values import INTEGERS, HostLaunch
from tuner.extensions.draft.indices import IndexSite, Shape, cancel_factors, linear, product, widest
from tuner.extensions.draft.launches import Axes, LaunchDraft, numbers_of
from tuner.extensions.draft.loops import terms_of
from tuner.extensions.draft.ranges import range_fill
from tuner.extensions.draft.translate import Scope, translate
from tuner.extensions.draft.tunables import TunableConstant
from tuner.model.expressions import Expression
from tuner.model.kernel import DTYPE_BYTES
from tuner.source.accesses import bare
from tuner.source.facts import IDENTIFIER, KernelParameter
from tuner.source.kernels import dtype_of, element_dtype, lanes_of
from tuner.source.syntax import number

# a text as the file states it, and where the source says so
Stated = tuple[str, str]
ShapeAndOrigin = tuple[Shape, str]
# a shape, with how sure an index makes it and which one
Indexed = tuple[Shape, Stated]
_LONGEST_CODE = 60
# All orders of so many dimensions are tried.
_MOST_ORDERED = 5
# Smaller numbers agree with an axis by chance.
_LEAST_TELLING = 8
_MOST_FACTORS = 3
# Whole numbers of one and two bytes point nowhere beyond.
_BELOW = {"uint8": 2**8, "int8": 2**7, "uint16": 2**16, "int16": 2**15}
_STEP = re.compile(r";\s*(\w+)\s*\+=\s*([^;{}]+?)\)\s*(?=[\w{*#])")
_NUMBERS = re.compile(r"(indices|distinct)\((\d+)\)")


class Arrays:
    """The arrays of one kernel, as its launch, its indices and its host code have them."""

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
        self.reaches: dict[str, list[Access]] = {}
        self.own = own_arrays(launch.source, launch.kernel)
        for reach in launch.accesses(self.own):
            self.reaches.setdefault(reach.array, []).append(reach)
        arrays = [p for p in launch.kernel.parameters if p.pointers == 1 and p.name]
        dtypes = {p.name: dtype_of(p.c_type, self.types) or "" for p in arrays}
        whole = {name: f"{name}_below" for name, dtype in dtypes.items() if dtype in INTEGERS}
        self.narrow = {n: _BELOW[dtype] for n, dtype in dtypes.items() if dtype in _BELOW}
        self.tables = whole | {name: str(below) for name, below in self.narrow.items()}
        self.segments = {name: access for name in whole if (access := self.segment(name))}
        self.lasts = {name: f"{name}_last" for name in self.segments}

    def segment(self, name: str) -> Access | None:
        """Find where an array says where a segment begins, and in the next place where it ends."""
        reaches = [a for a in self.reaches.get(name, []) if a.exact and not a.writes]
        terms = [linear(bare(access.index)) for access in reaches]
        for reach, first in zip(reaches, terms, strict=True):
            if first is not None and first + Counter({"": 1}) in terms:
                return reach
        return None

    def shapes(
        self, arrays: Sequence[KernelParameter]
    ) -> dict[str, tuple[Shape, tuple[Evidence, ...]]]:
        """Find the shapes of those arrays that memory, an index or an accessor tells."""
        indexed = {p.name: found for p in arrays if (found := self.index_shape(p)) is not None}
        shapes: dict[str, tuple[Shape, tuple[Evidence, ...]]] = {}
        for parameter in arrays:
            name, numbers = parameter.name, tuple[Evidence, ...]()
            if sized := self.accessor_sizes(parameter):
                shapes[name] = sized, (Evidence(SURE, "the sizes of PyTorch's accessor"),)
                continue
            memory, index = self.allocation_shape(parameter), indexed.get(name)
            reach = self.segments.get(name) if memory is None else None
            whole = self.shape(reach) if reach is not None else None
            if reach is not None and whole is not None and len(whole) == 1:
                note = f"where segments begin and end, line {reach.line}: {name}[{reach.index}]"
                shapes[name] = (f"{whole[0]} + 1",), (Evidence(LIKELY, note),)
                continue
            if memory is not None and index is not None and index[1][0] == GUESSED:
                index = None
            if memory is not None:
                shape, numbers = self.name_extents(memory[0])
                memory = shape, memory[1]
            if index is not None:
                shape, own = self.name_extents(index[0])
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
                shape, evidence = self.order_extents(name, *memory, known)
            shapes[name] = shape, (evidence, *numbers)
        return shapes

    def index_arrays(self, reach: Access) -> set[str]:
        """List the arrays that say where this one is touched."""
        return self.site(reach).index_arrays(reach.index)

    def fills(self, shapes: Mapping[str, tuple[Shape, object]]) -> dict[str, Stated]:
        """Find what arrays hold: indices of the rows that they point into, segments, or zeros."""
        source, kernel = self.launch.source, self.launch.kernel
        spans = source.reachable([kernel])
        fills: dict[str, Stated] = {}
        for p in (p for p in kernel.parameters if p.pointers):
            dtype, passed = element_dtype(p.c_type, self.types) or "", self.passed.get(p.name)
            # the range of whole numbers that are data, as far as what is done with them says
            if (stated := range_fill(source.masked, spans, p.name, dtype)) is not None:
                fills[p.name] = stated
            # what host code sets to zeros before it launches, for the kernel to add to
            if passed is not None and p.pointers == 1 and not p.const:
                lines = [zeroed_line(host, passed) for host in self.hosts]
                if lines and None not in lines:
                    fills[p.name] = "zeros", f"set to 0 in line {lines[0]}"
        found: dict[str, Stated] = {}
        for name, (shape, _) in shapes.items():
            for reach in self.reaches.get(name, []):
                # `x[i * classes + label[i]]` is an element of a row, and no row
                site, terms = self.site(reach), terms_of(reach.index)
                for table in site.index_arrays(reach.index):
                    plainly = reach.writes and not reach.reads
                    own = re.compile(rf"{table}\s*\[[^\[\]]*\]")
                    is_element = any(own.fullmatch(site.expand(term)) for term in terms)
                    extent = shape[-1 if is_element else 0]
                    fill = f"{'distinct' if plainly else 'indices'}({extent})"
                    found.setdefault(table, (fill, f"points into {name}, line {reach.line}"))
        used = {extent for shape, _ in shapes.values() for extent in shape}
        for name, last in self.lasts.items():
            if last in used and name in shapes:
                found[name] = f"offsets({last})", "segments of others"
        fills |= self.own_fills() | found
        for name, (fill, told) in fills.items():
            match, below = _NUMBERS.fullmatch(fill), self.narrow.get(name)
            if match is not None and below is not None and int(match[2]) > below:
                # what a byte holds, where an array that it points into is larger
                fills[name] = f"indices({below})", told
        return fills

    def own_fills(self) -> dict[str, Stated]:
        """Find what is below the size of an array of the kernel's own, as the bins of a histogram.

        Of an array whose size the launch says, it is what other indices run over.
        """
        found: dict[str, Stated] = {}
        for array in self.own:
            reaches = self.reaches.get(array.name, [])
            pointed = {reach: self.index_arrays(reach) for reach in reaches}
            shapes = {self.shape(reach) for reach in reaches if not pointed[reach]}
            if array.size:
                stated = translate(array.size, self.scope)
                shapes = {self.if_static((stated,) if stated else ())}
            below = [shape[0] for shape in shapes if shape is not None and len(shape) == 1]
            for reach, tables in pointed.items() if len(below) == 1 else ():
                for table in tables:
                    note = f"points into {array.name}, line {reach.line}"
                    found.setdefault(table, (f"indices({below[0]})", note))
        return found

    def agree(self, one: Shape, other: Shape) -> bool:
        """Tell whether two shapes hold as many elements, on every way to the launch."""
        if sorted(one) == sorted(other):
            return True
        known = [{axis: n.value for axis, n in sizes.items()} for sizes in self.sizes]
        whole = [Expression.parse(" * ".join(map("({})".format, shape))) for shape in (one, other)]
        if not known or any(w.names - sizes.keys() for w in whole for sizes in known):
            return False
        return all(whole[0].integer(sizes) == whole[1].integer(sizes) for sizes in known)

    def accessor_sizes(self, parameter: KernelParameter) -> Shape:
        # what an accessor became (extract/accessors.py)
        names = [p.name for p in self.launch.kernel.parameters]
        after = names[names.index(parameter.name) + 1 :]
        own = takewhile(lambda pair: pair[1] == f"{parameter.name}_n{pair[0]}", enumerate(after))
        return tuple(self.axes.names.get(name, name) for _, name in own)

    def order_extents(
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

    def name_extents(self, shape: Shape) -> tuple[Shape, tuple[Evidence, ...]]:
        """Put an axis in the place of a number that it always has; tell the numbers that stay."""
        if not self.axes.names or not any(extent.isdigit() for extent in shape):
            return shape, ()
        extents, notes = list[str](), []
        for extent in shape:
            axes = self.axes_of(int(extent)) if extent.isdigit() else (extent,)
            if axes and axes != (extent,):
                note = f"{extent} is {' * '.join(axes)} wherever it is launched"
                notes.append(Evidence(LIKELY, note))
            elif extent.isdigit() and int(extent) > 1:
                notes.append(Evidence(GUESSED, f"{extent} is a number in the source, no axis"))
            extents += axes or (extent,)
        return tuple(extents), tuple(notes)

    def axes_of(self, number: int) -> tuple[str, ...]:
        """Find the only axes whose product is a number on every way to the launch."""
        names = [*self.axes.names.values()]
        own = [size for size in self.sizes if {*names} <= {*size}]
        if number < _LEAST_TELLING or not own:
            return ()
        found = [
            axes
            for count in range(1, min(len(names), _MOST_FACTORS) + 1)
            for axes in combinations(names, count)
            if all(prod(numbers[axis].value for axis in axes) == number for numbers in own)
        ]
        return found[0] if len(found) == 1 else ()

    def index_shape(self, parameter: KernelParameter) -> Indexed | None:
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
        pairs = ((own or self.spacing_shape(r), r) for own, r in zip(exact, telling, strict=True))
        shapes = {shape: r for shape, r in reversed([*pairs]) if shape is not None}
        if not shapes:
            return None
        shapes = {one: shapes[one] for one in widest([*shapes])}
        shape = max(shapes, key=lambda one: len(product(one).split(" * ")))
        whole = Counter(product(shape).split(" * "))
        if any(Counter(product(one).split(" * ")) - whole for one in shapes):
            return None
        reach = shapes[shape]
        # what leaves out the edge of an array says nothing of the edge
        is_inner = any(re.search(r" - \d+$", extent) for extent in shape)
        is_widest = widest([one for one in {*exact} if one]) == [shape]
        certain = is_widest and not is_inner and None not in exact
        code = f"{parameter.name}[{reach.index}]"
        code = code if len(code) <= _LONGEST_CODE else f"{code[:_LONGEST_CODE]}..."
        how = "indexed" if reach.exact else "handed on"
        shape = (*shape, str(lanes)) if lanes > 1 else shape
        return shape, (LIKELY if certain else GUESSED, f"{how} in line {reach.line}: {code}")

    def shape(self, reach: Access) -> Shape | None:
        return self.if_static(tuple(cancel_factors(self.site(reach).dimensions(reach.index) or ())))

    def spacing_shape(self, reach: Access) -> Shape | None:
        """Go by how far apart rows are, or by how many elements are handed on."""
        site = self.site(reach)
        shape = site.count_shape(reach.index, reach.counts) or site.spacing_shape(reach.index)
        if shape is None and reach.index != "0":
            shape = site.dimensions(reach.index)
        return self.if_static(shape or ())

    def if_static(self, shape: Shape) -> Shape | None:
        # no shape may depend on what is tuned
        named = {name for extent in shape for name in IDENTIFIER.findall(extent)}
        return None if not shape or named & self.tunable else shape

    def site(self, reach: Access) -> IndexSite:
        known, text = self.launch.values_at(reach.at, reach.loop_end), self.launch.body
        if flat := "xyz"[len(self.block) :] if self.block else "":
            # a block of one row has threadIdx.y of 0
            size, at = rf"blockDim\.[{flat}]", rf"threadIdx\.[{flat}]"
            gone = rf"\s*\*\s*{size}|\b{size}\s*\*\s*", rf"\s*\+\s*{at}|\b{at}\s*\+\s*"
            for one in gone:
                known = {name: re.sub(one, "", value) for name, value in known.items()}
        steps = {name: by for name, by in _STEP.findall(text) if text.count(f"{name} +=") == 1}
        return IndexSite(
            self.scope, self.grid, self.block, reach.bounds, known, frozenset(self.tunable),
            self.tables, self.lasts, steps,
        )  # fmt: skip

    def allocation_shape(self, parameter: KernelParameter) -> ShapeAndOrigin | None:
        dtype = element_dtype(parameter.c_type, self.types)
        if dtype is None or parameter.name not in self.passed or not self.hosts:
            return None
        texts = self.axes.texts(self.launch)
        passed, size = self.passed[parameter.name], DTYPE_BYTES[dtype]
        found = [allocated_shape(host, passed, texts, size) for host in self.hosts]
        first = found[0]
        return first if first and all(f is not None and f[0] == first[0] for f in found) else None


_MAX_HOPS = 8
# of an array of pointers
_ONE_OF = re.compile(r"(\w+)\s*\[[^\]]*\]")
_POINTER_OF = re.compile(
    r"(?:thrust\s*::\s*)?raw_pointer_cast\s*\((.*)\)"
    r"|(.+?)\s*(?:\.|->)\s*(?:data|get|begin|data_ptr)\s*(?:<[^<>]*>)?\s*\(\s*\)"
    r"|&\s*(.+?)\s*\[\s*0\s*\]"
)
_ZEROED = r"\b(?:cuda|hip)Memset(?:Async)?\s*\(\s*{}\s*,\s*0\s*,"


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
        allocations = allocations_in(host.source, frame.span, dict(frame.variables))
        targets = {allocation.target for allocation in allocations}
        if text not in targets and (match := _ONE_OF.fullmatch(text)):
            text = match[1]
        if memory := [allocation for allocation in allocations if allocation.target == text]:
            definitions = {constant.name: constant.value for constant in host.source.constants}
            definitions |= {name: value.text for name, value in frame.variables.items()}
            scope = Scope(values=known, definitions=definitions, types=host.source.aliases)
            shapes = {_extents(one, scope, element_bytes) for one in memory}
            shape = shapes.pop() if len(shapes) == 1 else None
            return None if shape is None else (shape, f"{memory[0].how}, line {memory[0].line}")
        if (before := host.before(text, level)) is None:
            return None
        if before[1] > level:
            passed = {name: own for name, own in frame.passed.items() if number(own) is None}
            known = {plain(own): known[name] for name, own in passed.items() if name in known}
        text, level = before
    return None


def zeroed_line(host: Host, text: str) -> int | None:
    """Find where what a pointer in the launch points to is set to zeros before, if anywhere."""
    level = 0
    for _ in range(_MAX_HOPS):
        frame, text = host.path[level], pointer_text(text)
        zeroed = re.compile(_ZEROED.format(re.escape(text)))
        if match := zeroed.search(host.source.masked, *frame.span):
            return host.source.line_at(match.start())
        if (before := host.before(text, level)) is None:
            return None
        text, level = before
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
