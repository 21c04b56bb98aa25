"""Where a kernel reads and writes its arrays: each index as text, and what bounds it there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.source.facts import KernelFunction, LineIndex, SourceFile, Span
from tuner.source.syntax import Node, closing, fold, parse_tree, text_of, walk

_ASSIGNED = re.compile(r"(?<![\w.>])([A-Za-z_][\w.]*)\s*=(?!=)\s*([^;{}]+|\w*\s*\{[^;{}]*\})\s*;")
_CONSTRUCTED = re.compile(r"\b(?:dim3|cudaLaunchConfig_t)\s+(?:const\s+)?(\w+)\s*(?=[({])")
_NEXT_DECLARATOR = re.compile(r",\s*(?=[A-Za-z_]\w*\s*=(?!=))")
_CHANGED = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)"
    r"|(?<![\w.>])([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)=)"
    r"|(?<!cudaLaunchKernelEx)(?<!cudaLaunchKernelExC)[(,)]\s*&\s*([A-Za-z_]\w*)\s*(?=[,)])"
)


@dataclass(frozen=True, slots=True)
class Assigned:
    """The value of a variable as text, and the offset where it is given."""

    text: str
    at: int


def assigned(masked: str, functions: tuple[Span, ...], end: int) -> dict[str, Assigned]:
    """Map the variables that the function around `end` gives one value before it.

    Those that it counts up, adds to or hands out by address are left out: they have several.
    """
    start = max((a for a, b in functions if a <= end < b), default=0)
    values: dict[str, dict[str, int]] = {}
    for match in _CONSTRUCTED.finditer(masked, start, end):
        close = closing(masked, match.end())
        if close is not None:
            values.setdefault(match[1], {})[fold(masked[match.end() : close])] = match.start()
    for match in _ASSIGNED.finditer(masked, start, end):
        for piece in _NEXT_DECLARATOR.split(f"{match[1]} = {match[2]}"):
            name, _, value = piece.partition("=")
            values.setdefault(name.strip(), {}).setdefault(fold(value), match.start())
    changed = {name for match in _CHANGED.finditer(masked, start, end) for name in match.groups()}
    return {
        name: Assigned(*next(iter(found.items())))
        for name, found in values.items()
        if len(found) == 1 and name not in changed
    }


_LEAVES = ("return_statement", "continue_statement", "break_statement")
_FLIPPED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True, slots=True)
class Bound:
    """`what` is below `limit` where an array is accessed."""

    what: str
    limit: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """Reads the bounds in a function whose body starts at the offset `start`."""

    masked: str
    start: int

    def at(self, node: Node) -> Iterator[Bound]:
        """Yield what holds where a node is evaluated, the innermost condition first."""
        child, parent = node, node.parent
        while parent is not None and parent.start_byte >= self.start:
            yield from self._by(parent, child)
            child, parent = parent, parent.parent

    def _by(self, parent: Node, child: Node) -> Iterator[Bound]:
        condition = parent.child_by_field_name("condition")
        if parent.type == "compound_statement":
            # what has returned or gone on already
            for sibling in reversed(parent.named_children):
                if sibling.start_byte < child.start_byte:
                    yield from self._survived(sibling)
        elif operator_of(parent, self.masked) == "&&" and child == parent.child_by_field_name(
            "right"
        ):
            left = parent.child_by_field_name("left")
            if left is not None:
                yield from self._holding(left)
        elif condition is None or child == condition:
            return
        elif parent.type in ("for_statement", "while_statement"):
            if child != parent.child_by_field_name("initializer"):
                yield from self._holding(condition)
        elif parent.type in ("if_statement", "conditional_expression"):
            if child == parent.child_by_field_name("consequence"):
                yield from self._holding(condition)
            elif child == parent.child_by_field_name("alternative"):
                yield from self._failing(condition)

    def _survived(self, statement: Node) -> Iterator[Bound]:
        if statement.type != "if_statement" or statement.child_by_field_name("alternative"):
            return
        body = statement.child_by_field_name("consequence")
        while body is not None and body.type == "compound_statement":
            body = body.named_children[-1] if body.named_children else None
        condition = statement.child_by_field_name("condition")
        if body is not None and body.type in _LEAVES and condition is not None:
            yield from self._failing(condition)

    def _holding(self, condition: Node) -> Iterator[Bound]:
        condition = _inner(condition)
        sign = operator_of(condition, self.masked)
        if sign == "&&":
            for side in ("left", "right"):
                inside = condition.child_by_field_name(side)
                if inside is not None:
                    yield from self._holding(inside)
        elif sign in _FLIPPED:
            yield from self._compared(condition, sign)

    def _failing(self, condition: Node) -> Iterator[Bound]:
        condition = _inner(condition)
        sign = operator_of(condition, self.masked)
        if sign == "||":
            for side in ("left", "right"):
                inside = condition.child_by_field_name(side)
                if inside is not None:
                    yield from self._failing(inside)
        elif sign in _FLIPPED:
            yield from self._compared(condition, _FLIPPED[sign])

    def _compared(self, condition: Node, sign: str) -> Iterator[Bound]:
        left, right = (condition.child_by_field_name(side) for side in ("left", "right"))
        if left is None or right is None:
            return
        small, large = (left, right) if sign in ("<", "<=") else (right, left)
        limit = self._text(large)
        more = sign in ("<=", ">=")
        yield Bound(bare(self._text(small)), f"({limit}) + 1" if more else limit)

    def _text(self, node: Node) -> str:
        return fold(text_of(node, self.masked))


def bare(text: str) -> str:
    """Write an expression without spaces and the parentheses around the whole, to compare it."""
    text = re.sub(r"\s+", "", text)
    while text.startswith("(") and closing(text, 0) == len(text):
        text = text[1:-1]
    return text


def operator_of(node: Node, masked: str) -> str:
    """Return the operator of a binary expression; "" for any other node."""
    sign = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    return text_of(sign, masked) if sign is not None else ""


def _inner(condition: Node) -> Node:
    while condition.type in ("condition_clause", "parenthesized_expression"):
        value = condition.child_by_field_name("value") or next(iter(condition.named_children), None)
        if value is None:
            break
        condition = value
    return condition


_PARTS = ("field_expression", "parenthesized_expression", "subscript_expression")
# `x + i` in them is an element, elsewhere a pointer that is handed on
_ELEMENT_CALLS = re.compile(r"__ld\w+|__st\w+|atomic\w+")


@dataclass(frozen=True, slots=True)
class Access:
    """One access of an array: its index, None where it cannot be told; innermost bounds first.

    What cannot be told is taken to read and to write.
    """

    array: str
    index: str | None
    bounds: tuple[Bound, ...]
    at: int
    line: int
    reads: bool = True
    writes: bool = True


def accesses_of(source: SourceFile, kernel: KernelFunction) -> tuple[Access, ...]:
    """List the accesses of the arrays that the kernel is handed, through local pointers too."""
    arrays = {p.name for p in kernel.parameters if p.pointers == 1 and p.name}
    return tuple(_AccessReader(source, kernel, LineIndex(source.text)).accesses(arrays))


@dataclass(frozen=True, slots=True)
class _AccessReader:
    source: SourceFile
    kernel: KernelFunction
    lines: LineIndex

    def accesses(self, arrays: set[str]) -> Iterator[Access]:
        start, end = self.kernel.body
        bounds = Bounds(self.source.masked, start)
        # a local pointer stands for an array and an offset
        pointers = {name: (name, "0") for name in arrays}
        for node in walk(parse_tree(self.source.masked)):
            if node.type != "identifier" or not start <= node.start_byte < end:
                continue
            name = self.text(node)
            if name not in pointers or self.is_declared(node):
                continue
            array, offset = pointers[name]
            moved = self.moved(node)
            if moved is not None:
                pointers[name] = array, _sum(offset, moved)
                continue
            alias = self.alias(node)
            if alias is not None and alias[0] not in pointers:
                pointers[alias[0]] = array, _sum(offset, alias[1])
                continue
            index = self.index(node)
            reads, writes = (True, True) if index is None else self.use(node)
            yield Access(
                array=array,
                index=None if index is None else _sum(offset, index),
                bounds=tuple(bounds.at(node)),
                at=node.start_byte,
                line=self.lines.at(node.start_byte),
                reads=reads,
                writes=writes,
            )

    def text(self, node: Node) -> str:
        return fold(text_of(node, self.source.masked))

    def is_declared(self, node: Node) -> bool:
        parent = node.parent
        return parent is not None and parent.type in ("pointer_declarator", "parameter_declaration")

    def moved(self, node: Node) -> str | None:
        # array += offset; once, not in a loop
        parent = node.parent
        if parent is None or parent.type != "assignment_expression":
            return None
        sign, right = (parent.child_by_field_name(f) for f in ("operator", "right"))
        if sign is None or right is None or self.text(sign) != "+=" or right == node:
            return None
        around = parent.parent
        while around is not None and around.start_byte >= self.kernel.body[0]:
            if around.type in ("for_statement", "while_statement", "do_statement"):
                return None
            around = around.parent
        return self.text(right)

    def alias(self, node: Node) -> tuple[str, str] | None:
        # const T* row = array + offset;  const T* row = &array[offset];
        value, offset = node, "0"
        parent = node.parent
        if parent is not None and parent.type == "subscript_expression":
            offset = self.indices(parent)
            value, parent = parent, parent.parent
            if parent is None or parent.type != "pointer_expression":
                return None
            value, parent = parent, parent.parent
        elif parent is not None and operator_of(parent, self.source.masked) == "+":
            offset = self.other(parent, node)
            value, parent = parent, parent.parent
        if parent is None or parent.type != "init_declarator":
            return None
        declared = parent.child_by_field_name("declarator")
        if declared is None or declared == value or "pointer" not in declared.type:
            return None
        name = re.search(r"(\w+)$", self.text(declared))
        return (name[1], offset) if name else None

    def index(self, node: Node) -> str | None:
        parent = node.parent
        if parent is None:
            return None
        if parent.type == "subscript_expression":
            return self.indices(parent) if self.is_kept(parent) else None
        if parent.type == "pointer_expression" and self.text(parent).startswith("*"):
            return "0"
        if self.called(parent) is not None:
            return "0"
        if operator_of(parent, self.source.masked) != "+":
            return None
        around = parent.parent
        if around is not None and around.type == "parenthesized_expression":
            around = around.parent
        dereferenced = (
            around is not None
            and around.type == "pointer_expression"
            and self.text(around).startswith("*")
        )
        return self.other(parent, node) if dereferenced or self.called(around) else None

    def is_kept(self, subscript: Node) -> bool:
        # `&x[i]` for whoever is not known to touch only that element
        around = subscript.parent
        if around is None or around.type != "pointer_expression":
            return True
        return self.text(around).startswith("*") or self.called(around.parent) is not None

    def use(self, node: Node) -> tuple[bool, bool]:
        element: Node | None = node.parent
        while element is not None and element.type not in (
            "subscript_expression",
            "pointer_expression",
            "argument_list",
        ):
            element = element.parent
        if element is None:
            return True, True
        call = self.called(element)
        around = element.parent
        if around is not None and around.type == "pointer_expression":
            if not self.text(around).startswith("&"):
                return True, True
            call, around = self.called(around.parent), around.parent
            if call is None:
                return True, True
        if call is not None:
            return not call.startswith("__st"), not call.startswith("__ld")
        while around is not None and around.type in _PARTS:
            element, around = around, around.parent
        if around is None or around.type == "update_expression" or self.is_swap(around):
            return True, True
        if around.type == "assignment_expression" and around.child_by_field_name("left") == element:
            sign = around.child_by_field_name("operator")
            return sign is None or self.text(sign) != "=", True
        return True, False

    def is_swap(self, arguments: Node) -> bool:
        call = arguments.parent if arguments.type == "argument_list" else None
        function = call.child_by_field_name("function") if call is not None else None
        return function is not None and self.text(function).endswith("swap")

    def called(self, arguments: Node | None) -> str | None:
        if arguments is None or arguments.type != "argument_list":
            return None
        function = arguments.parent and arguments.parent.child_by_field_name("function")
        name = self.text(function) if function is not None else ""
        return name if _ELEMENT_CALLS.fullmatch(name) else None

    def indices(self, subscript: Node) -> str:
        inside = subscript.child_by_field_name("indices")
        return self.text(inside)[1:-1].strip() if inside is not None else "0"

    def other(self, binary: Node, node: Node) -> str:
        left, right = (binary.child_by_field_name(side) for side in ("left", "right"))
        chosen = right if left == node else left
        return self.text(chosen) if chosen is not None else "0"


def _sum(offset: str, index: str) -> str:
    if offset == "0":
        return index
    return offset if index == "0" else f"({offset}) + ({index})"
