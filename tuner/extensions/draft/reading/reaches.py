"""Where a kernel touches its arrays, through offsets, casts and functions of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.model.kernel import DTYPE_BYTES
from tuner.source.accesses import Bound, bounds_at, find_assignments
from tuner.source.facts import KernelFunction, LineIndex, SourceFile, Span
from tuner.source.kernels import dtype_of, element_dtype, lanes_of
from tuner.source.syntax import Node, ancestors, fold, parse_tree, part, split_list, text_of, walk

_MAX_DEPTH = 4
_CAST = re.compile(r"(?:reinterpret|static|const)_cast\s*<(.*)>", re.DOTALL)
_POINTEE = re.compile(
    r"^(?:const\s+|volatile\s+)*(.+?)(?:\s+const)?\s*\*\s*(?:const|__restrict__)?$"
)
_ELEMENT_CALLS = re.compile(r"__ld\w+|__st\w+|atomic\w+")
_ATOMIC_SUM = re.compile(r"atomic(?:Add|Sub)\w*")
_PARTS = ("field_expression", "parenthesized_expression")
_DECLARATORS = ("pointer_declarator", "reference_declarator", "array_declarator")
_TESTS = ("==", "!=", "&&", "||")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_DECLARED = re.compile(r"\b(?:int|unsigned|auto|size_t|\w+_t|long)\s+(\w+)\s*[=;]")


@dataclass(frozen=True, slots=True)
class Reach:
    """A place where an array is touched; `index` counts its elements from the start.

    Where it is not `exact`, whoever is handed the place may go on from there; `counts` are the
    other things that are handed with it. `adds`: an atomic sum, whose terms come in any order.
    """

    array: str
    index: str
    bounds: tuple[Bound, ...]
    at: int
    line: int
    loop_end: int = 0
    exact: bool = True
    reads: bool = True
    writes: bool = False
    counts: tuple[str, ...] = ()
    adds: bool = False


@dataclass(frozen=True, slots=True)
class OwnArray:
    """An array of one dimension that a kernel declares; `size` is "" where the launch says it."""

    name: str
    c_type: str
    size: str


def own_arrays(source: SourceFile, kernel: KernelFunction) -> tuple[OwnArray, ...]:
    """List the arrays of one dimension in a kernel's body, in shared memory or its threads'."""
    found = []
    tree = parse_tree(source.masked)
    around = tree.descendant_for_byte_range(kernel.body[0], kernel.body[1] - 1)
    for node in walk(around) if around is not None else ():
        name, parent = part(node, "declarator"), node.parent
        if node.type != "array_declarator" or parent is None or name is None:
            continue
        whole = parent.parent if parent.type == "init_declarator" else parent
        kind = part(whole, "type")
        if name.type == "identifier" and kind is not None:
            said = [fold(text_of(one, source.masked)) for one in (name, kind, part(node, "size"))]
            found.append(OwnArray(name=said[0], c_type=said[1], size=said[2]))
    return tuple(found)


def reaches_of(
    source: SourceFile,
    kernel: KernelFunction,
    types: Mapping[str, str],
    own: Sequence[OwnArray] = (),
) -> tuple[Reach, ...]:
    """List where the arrays that a kernel is handed, or has of its `own`, are touched.

    `types` says what types are.
    """
    functions: dict[str, list[Node]] = {}
    for node in walk(parse_tree(source.masked)):
        if node.type == "function_definition" and part(node, "body"):
            functions.setdefault(name_of(part(node, "declarator", "declarator")), []).append(node)
    reader = _ReachReader(source.masked, kernel.body, types, functions)
    arrays = [p for p in kernel.parameters if p.pointers == 1 and p.name]
    names = [(one.name, one.c_type) for one in own] + [(p.name, p.c_type) for p in arrays]
    places = {name: _ReachPlace(name, c_type) for name, c_type in names}
    return tuple(reader.reaches(places))


@dataclass(frozen=True, slots=True)
class _ReachPlace:
    # what a pointer points to: an element of an array; `unit` are the array's elements in one of
    # the pointer's, "/ 2" where two of the pointer's make one; None where nobody knows
    array: str
    c_type: str
    offset: str = "0"
    unit: str | None = "1"
    wanders: bool = False

    def move_by(self, by: str) -> _ReachPlace:
        if self.unit is None:
            return replace(self, wanders=True)
        if self.unit.startswith("/"):
            by = " + ".join(f"{term} {self.unit}" for term in split_at(by, "+"))
        elif self.unit != "1" and by != "0":
            by = f"({by}) * {self.unit}"
        return replace(self, offset=_sum(self.offset, by))


@dataclass(frozen=True, slots=True)
class _ReachReader:
    masked: str
    span: Span
    types: Mapping[str, str]
    functions: Mapping[str, list[Node]]
    depth: int = 0
    # names in each body, and what is reached in each that was read: many calls lead to one
    names: dict[Span, list[Node]] = field(default_factory=dict)
    known: dict[tuple[Span, int, str, _ReachPlace], tuple[Reach, ...]] = field(default_factory=dict)
    lines: LineIndex = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", LineIndex(self.masked))

    def reaches(self, places: dict[str, _ReachPlace]) -> Iterator[Reach]:
        if self.span not in self.names:
            tree = parse_tree(self.masked)
            around = tree.descendant_for_byte_range(self.span[0], self.span[1] - 1)
            inside = walk(around) if around is not None else ()
            self.names[self.span] = [n for n in inside if n.type == "identifier"]
        nodes = self.names[self.span]
        wandering = {self.text(n) for n in nodes if self.is_moved_in_loop(n)}
        for node in nodes:
            place = places.get(self.text(node))
            if place is None or not self.span[0] <= node.start_byte < self.span[1]:
                continue
            if node.parent is None or self.is_declared(node):
                continue
            place = replace(place, wanders=place.wanders or self.text(node) in wandering)
            if by := self.move(node):
                if self.text(node) not in wandering:
                    places[self.text(node)] = place.move_by(by)
                continue
            top, place = self.climb(node, place)
            if alias := self.alias(top):
                places.setdefault(alias, place)
            else:
                yield from self.find_reaches(top, place)

    def text(self, node: Node | None) -> str:
        return fold(text_of(node, self.masked))

    def is_declared(self, node: Node) -> bool:
        parent = node.parent
        while parent is not None and parent.type in _DECLARATORS:
            node, parent = parent, parent.parent
        if parent is None or parent.type == "parameter_declaration":
            return True
        return parent.type in ("init_declarator", "declaration") and part(parent, "value") != node

    def move(self, node: Node) -> str:
        parent = node.parent
        if parent is None or parent.type != "assignment_expression":
            return ""
        if part(parent, "left") != node or self.text(part(parent, "operator")) != "+=":
            return ""
        return self.text(part(parent, "right"))

    def is_moved_in_loop(self, node: Node) -> bool:
        parent = node.parent
        changed = parent is not None and (
            parent.type == "update_expression"
            or (parent.type == "assignment_expression" and part(parent, "left") == node)
        )
        return changed and any(self.loops(node))

    def loops(self, node: Node) -> Iterator[Node]:
        inside = (around for around in ancestors(node) if around.start_byte >= self.span[0])
        return (around for around in inside if around.type in _LOOPS)

    def climb(self, node: Node, place: _ReachPlace) -> tuple[Node, _ReachPlace]:
        """Follow a pointer outwards through casts, sums, `&x[i]` and choices."""
        while (parent := node.parent) is not None:
            sign = self.text(part(parent, "operator"))
            cast = self.cast(node, parent)
            if cast is not None:
                parent, place = cast[0], self.as_type(place, cast[1])
            elif parent.type == "binary_expression" and sign in ("+", "-"):
                left = part(parent, "left")
                other = self.text(part(parent, "right") if left == node else left)
                place = place.move_by(other if sign == "+" else f"-({other})")
            elif parent.type == "subscript_expression" and (address := self.address(parent)):
                if part(parent, "argument") != node:
                    break
                place, parent = place.move_by(self.indices(parent)), address
            elif parent.type == "conditional_expression":
                if part(parent, "condition") == node:
                    break
            elif parent.type != "parenthesized_expression":
                break
            node = parent
        return node, place

    def cast(self, node: Node, parent: Node) -> tuple[Node, str] | None:
        if parent.type == "cast_expression":
            return parent, self.text(part(parent, "type"))
        call = parent.parent if parent.type == "argument_list" else None
        match = _CAST.fullmatch(self.text(part(call, "function"))) if call is not None else None
        return (call, match[1].strip()) if match is not None and call is not None else None

    def as_type(self, place: _ReachPlace, c_type: str) -> _ReachPlace:
        match = _POINTEE.match(c_type)
        if match is None:
            return place  # `auto`, or a number of the address
        return replace(place, unit=self.unit(match[1].strip(), place.c_type))

    def unit(self, c_type: str, array_type: str) -> str | None:
        own, other = self.size(array_type), self.size(c_type)
        if array_type == c_type:
            return "1"
        if own is None or other is None or own[1]:
            return None
        if other[0] >= own[0]:
            factors = [str(other[0] // own[0]), *other[1]]
            return " * ".join(f for f in factors if f != "1") or "1"
        return None if other[1] else f"/ {own[0] // other[0]}"

    def size(self, c_type: str, depth: int = 0) -> tuple[int, tuple[str, ...]] | None:
        """Give the bytes of a type, and what multiplies them: `Vec<float, N>` is 4 times N."""
        if dtype := dtype_of(c_type, self.types):
            return DTYPE_BYTES[dtype], ()
        if dtype := element_dtype(c_type, self.types):
            return DTYPE_BYTES[dtype] * lanes_of(c_type, self.types), ()
        name = re.escape(c_type.removeprefix("typename ").strip())
        if match := re.search(rf"\busing\s+{name}\s*=\s*([^;]+);", self.masked):
            return self.size(fold(match[1]), depth + 1) if depth < _MAX_DEPTH else None
        inside = re.fullmatch(r"[\w:]+\s*<(.*)>", c_type, re.DOTALL)
        pieces = [fold(piece) for piece, _ in split_list(inside[1], angles=True)] if inside else []
        if len(pieces) < 2 or depth >= _MAX_DEPTH:
            return None
        first, second = pieces[:2]
        element = self.size(first, depth + 1) or self.size(second, depth + 1)
        count = second if self.size(first, depth + 1) else first
        return None if element is None or element[1] else (element[0], (count,))

    def alias(self, node: Node) -> str:
        parent = node.parent
        if (
            parent is not None
            and parent.type == "init_declarator"
            and part(parent, "value") == node
        ):
            declared = part(parent, "declarator")
            kinds = ("pointer_declarator", "identifier")
            return name_of(declared) if declared is not None and declared.type in kinds else ""
        if parent is not None and parent.type == "assignment_expression":
            left = part(parent, "left")
            plain = left is not None and left.type == "identifier" and left != node
            return self.text(left) if plain and self.text(part(parent, "operator")) == "=" else ""
        return ""

    def find_reaches(self, node: Node, place: _ReachPlace) -> Iterator[Reach]:
        parent = node.parent
        if parent is None or self.is_tested(node, parent):
            return
        if parent.type == "subscript_expression" and part(parent, "argument") == node:
            yield self.reach(parent, place.move_by(self.indices(parent)))
        elif parent.type == "field_expression" or self.is_dereference(parent):
            yield self.reach(parent, place)
        elif parent.type == "argument_list" and parent.parent is not None:
            called = name_of(part(parent.parent, "function"))
            if _ELEMENT_CALLS.fullmatch(called):
                reach = self.reach(parent, place)
                reads, writes = not called.startswith("__st"), not called.startswith("__ld")
                adds = _ATOMIC_SUM.fullmatch(called) is not None
                yield replace(reach, reads=reads, writes=writes, adds=adds)
                return
            inside = [*self.inside(called, parent, node, place)]
            others = tuple(self.text(one) for one in parent.named_children if one != node)
            yield from inside or [replace(self.reach(node, place), exact=False, counts=others)]
        else:
            yield replace(self.reach(node, place), exact=False)

    def is_tested(self, node: Node, parent: Node) -> bool:
        if parent.type in ("condition_clause", "unary_expression"):
            return True
        if parent.type == "conditional_expression":
            return part(parent, "condition") == node
        return self.text(part(parent, "operator")) in _TESTS

    def reach(self, element: Node, place: _ReachPlace) -> Reach:
        reads, writes = self.use(element)
        return Reach(
            array=place.array,
            index=place.offset,
            bounds=bounds_at(element, self.span[0], self.masked),
            at=element.start_byte,
            line=self.lines.at(element.start_byte),
            loop_end=max((loop.end_byte for loop in self.loops(element)), default=0),
            exact=place.unit is not None and not place.wanders,
            reads=reads,
            writes=writes,
        )

    def use(self, element: Node) -> tuple[bool, bool]:
        around = element.parent
        while around is not None and around.type in _PARTS:
            element, around = around, around.parent
        if around is None or around.type == "update_expression":
            return True, True
        if around.type == "argument_list":
            return True, self.text(part(around.parent, "function")).endswith("swap")
        left = around.type == "assignment_expression" and part(around, "left") == element
        return (not left or self.text(part(around, "operator")) != "="), left

    def inside(self, called: str, listed: Node, node: Node, place: _ReachPlace) -> Iterator[Reach]:
        """Follow a pointer into a function of the file; write indices in the caller's names."""
        passed = listed.named_children
        for function in self.functions.get(called, ()) if self.depth < _MAX_DEPTH else ():
            parameters, body = part(function, "declarator", "parameters"), part(function, "body")
            declared = [
                name_of(part(one, "declarator"))
                for one in (parameters.named_children if parameters is not None else ())
            ]
            at = passed.index(node)
            if body is None or at >= len(declared) or len(passed) > len(declared):
                continue
            names = {n: self.text(one) for n, one in zip(declared, passed, strict=False) if n}
            own = (body.start_byte, body.end_byte)
            start = replace(place, offset="0")
            key = own, self.depth, declared[at], start
            if key not in self.known:
                reader = replace(self, span=own, depth=self.depth + 1)
                self.known[key] = tuple(reader.reaches({declared[at]: start}))
            outer = self.reach(node, place)
            for found in self.known[key]:
                words = _Words(self.masked, own, found, names, called)
                bounds = tuple(Bound(words.text(b.what), words.text(b.limit)) for b in found.bounds)
                yield replace(
                    found,
                    index=_sum(place.offset, words.text(found.index)),
                    bounds=(*bounds, *outer.bounds),
                    at=outer.at,
                    loop_end=outer.loop_end,
                    exact=found.exact and outer.exact,
                    counts=tuple(words.text(one) for one in found.counts),
                )

    def is_dereference(self, node: Node) -> bool:
        return node.type == "pointer_expression" and self.text(node).startswith("*")

    def address(self, element: Node) -> Node | None:
        around = element.parent
        while around is not None and around.type == "parenthesized_expression":
            around = around.parent
        taken = around is not None and around.type == "pointer_expression"
        return around if taken and around is not None and not self.is_dereference(around) else None

    def indices(self, subscript: Node) -> str:
        inside = part(subscript, "indices")
        return self.text(inside)[1:-1].strip() if inside is not None else "0"


class _Words:
    """Writes what a function calls something in the names of its caller."""

    def __init__(
        self, masked: str, body: Span, found: Reach, passed: Mapping[str, str], function: str
    ) -> None:
        variables = find_assignments(masked, (body,), max(found.at, body[0]), found.loop_end)
        bounded = {bound.what for bound in found.bounds}
        self.values = {n: v.text for n, v in variables.items() if n not in bounded}
        self.passed, self.function = passed, function
        self.own = {*_DECLARED.findall(masked, *body)} - {*self.values}

    def text(self, text: str, depth: int = 0) -> str:
        def word(match: re.Match[str]) -> str:
            name = match[0]
            if name in self.passed:
                return f"({self.passed[name]})"
            if name in self.values and depth < _MAX_DEPTH:
                return f"({self.text(self.values[name], depth + 1)})"
            return f"{name}_{self.function}" if name in self.own else name

        return unwrap_name(re.sub(r"(?<![\w.])[A-Za-z_]\w*", word, text))


def unwrap_name(text: str) -> str:
    """Drop the parentheses around a single name."""
    match = re.fullmatch(r"\((\w+)\)", text)
    return match[1] if match else text


def name_of(node: Node | None) -> str:
    """Give the last name of a callee or a declarator, without what is around it."""
    while node is not None and node.type not in ("identifier", "field_identifier"):
        plain = ("identifier", "field_identifier", "pointer_declarator", "array_declarator")
        named = part(node, "name") or part(node, "field") or part(node, "declarator")
        node = named or next((one for one in node.named_children if one.type in plain), None)
    return node.text.decode() if node is not None and node.text is not None else ""


def split_at(text: str, sign: str) -> list[str]:
    """Split a text at a sign outside of brackets."""
    pieces, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == sign and depth == 0:
            pieces.append(text[start:at].strip())
            start = at + 1
    return [*pieces, text[start:].strip()]


def _sum(offset: str, index: str) -> str:
    if offset == "0":
        return index
    return offset if index == "0" else f"({offset}) + ({index})"
