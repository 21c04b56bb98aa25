"""Follow a kernel's pointers to where its arrays are touched: offsets, casts, functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.extensions.draft.array_access import Access, OwnArray, name_of, split_at, unwrap_name
from tuner.extensions.draft.extract.names import Macro, expand_macro, macros_in
from tuner.model.kernel import DTYPE_BYTES
from tuner.source.accesses import Bound, bounds_at, find_assignments
from tuner.source.facts import IDENTIFIER, KernelFunction, LineIndex, SourceFile, Span, within
from tuner.source.kernels import dtype_of, element_dtype, lanes_of
from tuner.source.syntax import (
    Node,
    ancestors,
    closing,
    fold,
    parse_tree,
    part,
    split_list,
    text_of,
    walk,
)

_MAX_DEPTH = 8
_MAX_TYPES = 4
# Of one function that is handed an array: each call of it has as many again.
_MOST_ACCESSES = 100
_CAST = re.compile(
    r"(?:std::)?(?:(?:reinterpret|static|const|bit)_cast\s*<(.*)>|__builtin_assume_aligned|launder)",
    re.DOTALL,
)
_POINTEE = re.compile(
    r"^(?:const\s+|volatile\s+)*(.+?)(?:\s+const)?\s*\*\s*(?:const|__restrict__)?$"
)
_CHANGES = re.compile(r"atomic\w+|swap")
# what functions of CUDA's and C's do with what they are passed at a place: read, write
_LIBRARY: tuple[tuple[re.Pattern[str], Callable[[int], str]], ...] = (
    (re.compile(r"memcpy|__pipeline_memcpy_async|memcpy_async"), lambda at: "wr"[at : at + 1]),
    (re.compile(r"__ld\w+|assert"), lambda _: "r"),
    (re.compile(r"__st\w+|memset"), lambda at: "w" * (at == 0)),
    (re.compile(r"swap"), lambda _: "rw"),
    (_CHANGES, lambda at: "rw" if at == 0 else "r"),
)
_UNTOUCHED = re.compile(r"\w*prefetch\w*|__is\w+|sizeof|alignof|decltype")
_ELEMENT_CALLS = re.compile(r"__ld\w+|__st\w+|atomic\w+|swap")
_ATOMIC_SUM = re.compile(r"atomic(?:Add|Sub)\w*")
# What its name says a function does that the file does not hold: a guess, and told as one.
_NAMED_LOAD = re.compile(r"load|^ld|_ld|read|fetch|gather", re.IGNORECASE)
_NAMED_STORE = re.compile(r"store|^st_|_st_|write|scatter", re.IGNORECASE)
_METHOD = re.compile(r"(?:\.|->)\s*(\w+)\s*$")
_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\s*(?:volatile|__volatile__)?\s*\(")
_ASM_STORE = re.compile(r"\bst\.|\.global\.shared")
_ASM_LOAD = re.compile(r"\bld\.|\bcp\.async")
_PLAIN_LOAD = re.compile(r"\bld\.")
_ASM_CHANGE = re.compile(r"\b(?:atom|red)\b")
_SAME_POINTER = ("parenthesized_expression", "update_expression")
_SAME_ELEMENT = ("parenthesized_expression", "field_expression", "subscript_expression")
_UNEVALUATED = ("sizeof_expression", "decltype", "alignof_expression", "template_argument_list")
_KEPT = ("pointer_expression", "initializer_list", "return_statement", "field_initializer",
         "initializer_pair")  # fmt: skip
_NAMES = ("identifier", "pointer_declarator", "reference_declarator")
_DECLARATORS = ("pointer_declarator", "reference_declarator", "array_declarator")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_DECLARED = re.compile(r"\b(?:int|unsigned|auto|size_t|\w+_t|long)\s+(\w+)\s*[=;]")
_LONGEST_CODE = 60


def accesses_of(
    source: SourceFile,
    kernel: KernelFunction,
    types: Mapping[str, str],
    own: Sequence[OwnArray] = (),
) -> tuple[Access, ...]:
    """List where the arrays that a kernel is handed, or has of its `own`, are touched.

    `types` says what types are.
    """
    functions: dict[str, list[Node]] = {}
    for node in walk(parse_tree(source.masked)):
        if node.type == "function_definition" and part(node, "body"):
            functions.setdefault(name_of(part(node, "declarator", "declarator")), []).append(node)
    reader = _Reader(source, kernel.body, types, functions)
    names = [(array.name, array.c_type) for array in own]
    names += [(p.name, p.c_type + "*" * (p.pointers - 1)) for p in kernel.parameters if p.pointers]
    places = {name: _Place(name, c_type) for name, c_type in names if name}
    macros = macros_in(source.masked)
    # `u[AT(x, y)]`
    return tuple(
        replace(access, index=expand_macro(Macro("", (), access.index), (), macros))
        if "(" in access.index
        else access
        for access in reader.read_accesses(places)
    )


@dataclass(frozen=True, slots=True)
class _Place:
    # what a pointer points to, or with `is_element` what a name stands for: an element of an array;
    # `unit` are the array's elements in one of the pointer's, "/ 2" where two of the pointer's make
    # one; None where nobody knows
    array: str
    c_type: str
    offset: str = "0"
    unit: str | None = "1"
    wanders: bool = False
    is_element: bool = False

    def move_by(self, by: str) -> _Place:
        if self.unit is None:
            return replace(self, wanders=True)
        if self.unit.startswith("/"):
            by = " + ".join(f"{term} {self.unit}" for term in split_at(by, "+"))
        elif self.unit != "1" and by != "0":
            by = f"({by}) * {self.unit}"
        return replace(self, offset=_sum(self.offset, by))


@dataclass(frozen=True, slots=True)
class _Reader:
    source: SourceFile
    span: Span
    types: Mapping[str, str]
    functions: Mapping[str, list[Node]]
    depth: int = 0
    # names in each body, and what is touched in each that was read: many calls lead to one
    names: dict[Span, list[Node]] = field(default_factory=dict)
    known: dict[tuple[Span, str, _Place], tuple[Access, ...]] = field(default_factory=dict)
    places: dict[str, _Place] = field(default_factory=dict)
    lines: LineIndex = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", LineIndex(self.masked))

    @property
    def masked(self) -> str:
        return self.source.masked

    def read_accesses(self, places: dict[str, _Place]) -> tuple[Access, ...]:
        self.places.clear()
        self.places.update(places)
        found = dict.fromkeys([*self.find_accesses(), *self.find_in_asm()])
        if len(found) <= _MOST_ACCESSES or not self.depth:
            return tuple(found)
        # functions that call one another many times: what they do, and no longer each place
        kinds = {(a.array, a.reads, a.writes, a.handed, a.adds): a for a in reversed([*found])}
        return tuple(replace(kind, exact=False) for kind in reversed(kinds.values()))

    def find_accesses(self) -> Iterator[Access]:
        if self.span not in self.names:
            tree = parse_tree(self.masked)
            around = tree.descendant_for_byte_range(self.span[0], self.span[1] - 1)
            inside = (n for n in (walk(around) if around else ()) if n.type == "identifier")
            self.names[self.span] = [n for n in inside if within(n.start_byte, [self.span])]
        nodes = self.names[self.span]
        wandering = set[str]()
        for node, around in ((n, n.parent) for n in nodes if n.parent is not None):
            is_set = around.type == "assignment_expression" and part(around, "left") == node
            if (is_set or around.type == "update_expression") and any(self.loops(node)):
                wandering.add(self.text(node))
        for node in nodes:
            place = self.places.get(self.text(node))
            if place is None or node.parent is None or self.is_declared(node):
                continue
            if any(ancestor.type in _UNEVALUATED for ancestor in ancestors(node)):
                continue
            if place.is_element:
                yield from self.follow_element(node, place)
                continue
            place = replace(place, wanders=place.wanders or self.text(node) in wandering)
            is_moved = self.text(part(node.parent, "operator")) == "+="
            if is_moved and part(node.parent, "left") == node:
                if self.text(node) not in wandering:
                    by = self.text(part(node.parent, "right"))
                    self.places[self.text(node)] = place.move_by(by)
            else:
                yield from self.follow_pointer(node, place)

    def find_in_asm(self) -> Iterator[Access]:
        for match in _ASM.finditer(self.masked, *self.span):
            end = closing(self.masked, match.end() - 1) or match.end()
            text = self.source.text[match.start() : end]
            changes = _ASM_CHANGE.search(text) is not None
            writes = changes or _ASM_STORE.search(text) is not None
            only_stores = _ASM_STORE.search(text) and not _PLAIN_LOAD.search(text)
            reads = changes or (_ASM_LOAD.search(text) is not None and not only_stores)
            if not (reads or writes) and "prefetch" in text:
                continue
            names = {*IDENTIFIER.findall(self.masked, match.start(), end)} & {*self.places}
            tree = parse_tree(self.masked)
            around = tree.descendant_for_byte_range(match.start(), end) or tree
            for name in sorted(names):
                access = self.access(around, self.places[name], reads=reads, writes=writes)
                handed = "" if reads or writes else "asm"
                at, line = match.start(), self.lines.at(match.start())
                yield replace(access, at=at, line=line, exact=False, handed=handed)

    def text(self, node: Node | None) -> str:
        return fold(text_of(node, self.masked))

    def is_declared(self, node: Node) -> bool:
        parent = node.parent
        while parent is not None and parent.type in _DECLARATORS:
            node, parent = parent, parent.parent
        if parent is None or parent.type == "parameter_declaration":
            return True
        return parent.type in ("init_declarator", "declaration") and part(parent, "value") != node

    def loops(self, node: Node) -> Iterator[Node]:
        inside = (around for around in ancestors(node) if around.start_byte >= self.span[0])
        return (around for around in inside if around.type in _LOOPS)

    def follow_pointer(self, node: Node, place: _Place) -> Iterator[Access]:
        node, place = self.climb(node, place)
        parent = node.parent
        if parent is None:
            return
        if parent.type == "subscript_expression" and part(parent, "argument") == node:
            yield from self.follow_element(parent, place.move_by(self.indices(parent)))
        elif parent.type == "field_expression" or self.is_dereference(parent):
            yield from self.follow_element(parent, place)
        elif parent.type == "argument_list":
            yield from self.follow_argument(node, parent, place)
        elif parent.type == "init_declarator" or (
            parent.type == "assignment_expression" and part(parent, "right") == node
        ):
            yield from self.name(part(parent, "declarator") or part(parent, "left"), place, node)
        elif parent.type in _KEPT:
            yield self.hand(node, place, self.text(parent)[:_LONGEST_CODE])

    def name(self, declared: Node | None, place: _Place, node: Node) -> Iterator[Access]:
        name = name_of(declared) if declared is not None and declared.type in _NAMES else ""
        if name:
            self.places.setdefault(name, place)
        else:
            yield self.hand(node, place, self.text(declared) or "?")

    def climb(self, node: Node, place: _Place) -> tuple[Node, _Place]:
        """Follow a pointer outwards through casts, sums, `&x[i]` and choices."""
        while (parent := node.parent) is not None:
            sign = self.text(part(parent, "operator"))
            cast = self.cast(node, parent)
            if cast is not None:
                parent, c_type = cast
                # else `auto`, or a number of the address
                if pointee := _POINTEE.match(c_type):
                    place = replace(place, unit=self.unit(pointee[1].strip(), place.c_type))
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
            elif parent.type not in _SAME_POINTER:
                break
            node = parent
        return node, place

    def cast(self, node: Node, parent: Node) -> tuple[Node, str] | None:
        if parent.type == "cast_expression":
            return parent, self.text(part(parent, "type"))
        call = parent.parent if parent.type == "argument_list" else None
        match = _CAST.fullmatch(self.text(part(call, "function"))) if call is not None else None
        if match is None or call is None or parent.named_children[0] != node:
            return None
        return call, (match[1] or "").strip()

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
            return self.size(fold(match[1]), depth + 1) if depth < _MAX_TYPES else None
        inside = re.fullmatch(r"[\w:]+\s*<(.*)>", c_type, re.DOTALL)
        pieces = [fold(piece) for piece, _ in split_list(inside[1], angles=True)] if inside else []
        if len(pieces) < 2 or depth >= _MAX_TYPES:
            return None
        first, second = pieces[:2]
        element = self.size(first, depth + 1) or self.size(second, depth + 1)
        count = second if self.size(first, depth + 1) else first
        return None if element is None or element[1] else (element[0], (count,))

    def follow_element(self, node: Node, place: _Place) -> Iterator[Access]:
        parent = node.parent
        element, at = node, node
        while parent is not None and parent.type in _SAME_ELEMENT:
            if parent.type == "subscript_expression" and part(parent, "argument") != element:
                break
            element, parent = parent, parent.parent
        if parent is None:
            return
        if parent.type == "assignment_expression" and part(parent, "left") == element:
            plain = self.text(part(parent, "operator")) == "="
            yield self.access(at, place, reads=not plain, writes=True)
        elif parent.type == "update_expression":
            yield self.access(at, place, writes=True)
        elif parent.type == "pointer_expression" and not self.is_dereference(parent):
            yield from self.follow_pointer(parent, replace(place, is_element=False))
        elif parent.type == "call_expression":  # a method of the element
            handed = name_of(part(parent, "function"))
            yield replace(self.access(at, place), handed=handed)
        elif parent.type == "argument_list":
            yield from self.follow_argument(element, parent, replace(place, is_element=True))
        elif reference := self.bound_reference(element, parent):
            yield from self.name(reference, replace(place, is_element=True), element)
        else:
            yield self.access(at, place)

    def bound_reference(self, node: Node, parent: Node) -> Node | None:
        # T& value = x[i];  for (T& value : x[i].values)
        declared = part(parent, "declarator")
        is_range = parent.type == "for_range_loop" and part(parent, "right") == node
        around = parent.parent if parent.type == "init_declarator" else parent if is_range else None
        if declared is None or declared.type != "reference_declarator" or around is None:
            return None
        head = self.masked[around.start_byte : declared.start_byte]
        return None if re.search(r"\bconst\b", head) else declared

    def follow_argument(self, node: Node, passed: Node, place: _Place) -> Iterator[Access]:
        call, at = passed.parent, passed.named_children.index(node)
        if call is None or call.type != "call_expression":
            # typename Traits::Load(storage).Load(x, values)
            if method := _METHOD.search(self.masked[: passed.start_byte][-80:]):
                yield from self.follow_call(method[1], node, passed, place)
            elif place.is_element:  # T value(x[i]);
                yield self.access(node, place)
            else:
                yield self.hand(node, place, "a constructor")
            return
        name = name_of(part(call, "function"))
        if place.is_element and (cast := self.cast(node, passed)):
            if "&" in cast[1]:
                yield from self.follow_element(call, place)
            else:
                yield self.access(node, place)
        elif known := next((uses(at) for what, uses in _LIBRARY if what.fullmatch(name)), ""):
            known = "r" if place.is_element and not _CHANGES.fullmatch(name) else known
            access = self.access(node, place, reads="r" in known, writes="w" in known)
            exact = access.exact and (place.is_element or bool(_ELEMENT_CALLS.fullmatch(name)))
            yield replace(access, exact=exact, adds=bool(_ATOMIC_SUM.fullmatch(name)) and at == 0)
        elif not _UNTOUCHED.fullmatch(name):
            yield from self.follow_call(name, node, passed, place)

    def follow_call(self, name: str, node: Node, passed: Node, place: _Place) -> Iterator[Access]:
        """Follow into the functions of the file; go by the name of one that is not there."""
        at = passed.named_children.index(node)
        called = False
        for function in self.functions.get(name, ()):
            listed = part(function, "declarator", "parameters")
            inside = listed.named_children if listed else []
            declared = [one for one in inside if one.type.endswith("parameter_declaration")]
            if at < len(declared):
                called = True
                yield from self.follow_inside(name, function, declared, node, passed, place)
        if called:
            return
        if place.is_element:
            yield self.access(node, place)
            return
        loads = _NAMED_LOAD.search(name) is not None
        stores = _NAMED_STORE.search(name) is not None
        others = tuple(self.text(child) for child in passed.named_children if child != node)
        access = replace(self.hand(node, place, f"{name}()"), counts=others)
        if loads != stores:
            access = replace(access, reads=loads, writes=stores, assumed=True)
        yield access

    def follow_inside(
        self,
        called: str,
        function: Node,
        declared: Sequence[Node],
        node: Node,
        passed: Node,
        place: _Place,
    ) -> Iterator[Access]:
        """Follow into a function of the file; write indices in the caller's names."""
        arguments, body = passed.named_children, part(function, "body")
        own = declared[arguments.index(node)]
        declarator = part(own, "declarator")
        outer = self.access(node, place)
        constant = re.search(r"\bconst\b(?!\s*(?:__restrict__\s*)?\w*$)", text_of(own, self.masked))
        by_reference = declarator is not None and declarator.type == "reference_declarator"
        if body is None or (place.is_element and (constant or not by_reference)):
            yield outer
            return
        if self.depth >= _MAX_DEPTH:
            yield self.hand(node, place, self.text(own))
            return
        pairs = zip((name_of(part(one, "declarator")) for one in declared), arguments, strict=False)
        names = {name: self.text(one) for name, one in pairs if name}
        span, start = (body.start_byte, body.end_byte), replace(place, offset="0")
        key = span, name_of(declarator), start
        if key not in self.known:
            self.known[key] = ()  # a function that calls itself
            reader = replace(self, span=span, depth=self.depth + 1, places={})
            self.known[key] = reader.read_accesses({name_of(declarator): start})
        accesses = self.known[key]
        if constant and not accesses:
            yield outer
        for inner in accesses:
            write = _words_of_caller(self.masked, span, inner, names, called)
            bounds = tuple(Bound(write(b.what), write(b.limit)) for b in inner.bounds)
            access = replace(
                inner,
                index=_sum(place.offset, write(inner.index)),
                bounds=(*bounds, *outer.bounds),
                at=outer.at,
                loop_end=outer.loop_end,
                exact=inner.exact and outer.exact,
                counts=tuple(map(write, inner.counts)),
            )
            if constant and inner.handed:
                access = replace(access, handed="", reads=True, writes=False)
            yield access

    def access(
        self, node: Node, place: _Place, *, reads: bool = True, writes: bool = False
    ) -> Access:
        return Access(
            array=place.array,
            index=place.offset,
            bounds=bounds_at(node, self.span[0], self.masked),
            at=node.start_byte,
            line=self.lines.at(node.start_byte),
            loop_end=max((loop.end_byte for loop in self.loops(node)), default=0),
            exact=place.unit is not None and not place.wanders,
            reads=reads,
            writes=writes,
            is_wide=place.unit != "1",
        )

    def hand(self, node: Node, place: _Place, to: str) -> Access:
        return replace(self.access(node, place), exact=False, handed=to)

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


def _words_of_caller(
    masked: str, body: Span, access: Access, passed: Mapping[str, str], function: str
) -> Callable[[str], str]:
    """Give what writes in the names of a function's caller what the function has a name for."""
    variables = find_assignments(masked, (body,), max(access.at, body[0]), access.loop_end)
    bounded = {bound.what for bound in access.bounds}
    values = {n: v.text for n, v in variables.items() if n not in bounded}
    own = {*_DECLARED.findall(masked, *body)} - {*values}

    def write(text: str, depth: int = 0) -> str:
        def word(match: re.Match[str]) -> str:
            name = match[0]
            if name in passed:
                return f"({passed[name]})"
            if name in values and depth < _MAX_DEPTH:
                return f"({write(values[name], depth + 1)})"
            return f"{name}_{function}" if name in own else name

        return unwrap_name(re.sub(r"(?<![\w.])[A-Za-z_]\w*", word, text))

    return write


def _sum(offset: str, index: str) -> str:
    if offset == "0":
        return index
    return offset if index == "0" else f"({offset}) + ({index})"
