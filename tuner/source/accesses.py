"""Where a kernel reads and writes its arrays: each index as text, and what bounds it there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tuner.source.facts import KernelFunction, LineIndex, SourceFile, Span
from tuner.source.syntax import Node, ancestors, closing, fold, parse_tree, part, text_of, walk

_ASSIGNED = re.compile(r"(?<![\w.>])([A-Za-z_][\w.]*)\s*=(?!=)\s*([^;{}]+|\w*\s*\{[^;{}]*\})\s*;")
_CONSTRUCTED = re.compile(r"\b(?:dim3|cudaLaunchConfig_t)\s+(?:const\s+)?(\w+)\s*(?=[({])")
_NEXT_CONSTRUCTED = re.compile(r"\s*,\s*(\w+)\s*(?=[({])")
_DECLARES = re.compile(r"(?:[*&>]|(?<![\w.])(?!return\b|else\b)\w+)$")
_NEXT_DECLARATOR = re.compile(r",\s*(?=[A-Za-z_]\w*\s*=(?!=))")
_CHANGED = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)"
    r"|(?<![\w.>])([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)=)"
    r"|(?<!cudaLaunchKernelEx)(?<!cudaLaunchKernelExC)[(,)]\s*&\s*([A-Za-z_]\w*)\s*(?=[,)])"
)
_LONGEST_WORD = 200
_BRACE = re.compile(r"[{}]")


@dataclass(frozen=True, slots=True)
class Assigned:
    """The value of a variable as text, and the offset where it is given."""

    text: str
    at: int


def _is_visible(masked: str, at: int, start: int, end: int) -> bool:
    # what a block declares is unknown behind it
    before = masked[max(start, at - _LONGEST_WORD) : at].rstrip()
    if not _DECLARES.search(before) and not _CONSTRUCTED.match(masked, at):
        return True
    depth = 0
    for brace in _BRACE.finditer(masked, at, end):
        depth += 1 if brace[0] == "{" else -1
        if depth < 0:
            return False
    return True


def find_assignments(
    masked: str, functions: tuple[Span, ...], end: int, loop_end: int = 0
) -> dict[str, Assigned]:
    """Map the variables that the function around `end` gives one value before it.

    Those that it counts up, adds to or hands out by address are left out, up to the end of the
    loop around if there is one: they have several.
    """
    # a function that was not recognized begins after the one before it
    before = masked.rfind("\n}", 0, end) + 1
    start = max((a for a, b in functions if a <= end < b), default=before)
    values: dict[str, dict[str, int]] = {}
    for match in _CONSTRUCTED.finditer(masked, start, end):
        one: re.Match[str] | None = match
        while one is not None and (close := closing(masked, one.end())) is not None:
            values.setdefault(one[1], {})[fold(masked[one.end() : close])] = match.start()
            one = _NEXT_CONSTRUCTED.match(masked, close, end)  # `dim3 grid(n), block(32, 8);`
    for match in _ASSIGNED.finditer(masked, start, end):
        for piece in _NEXT_DECLARATOR.split(f"{match[1]} = {match[2]}"):
            name, _, value = piece.partition("=")
            values.setdefault(name.strip(), {}).setdefault(fold(value), match.start())
    for found in values.values():
        if len(found) > 1:
            seen = {text: at for text, at in found.items() if _is_visible(masked, at, start, end)}
            found.clear()
            found.update(seen)
    changes = _CHANGED.finditer(masked, start, max(end, loop_end))
    changed = {name for match in changes for name in match.groups()}
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


def bare(text: str) -> str:
    """Write an expression without spaces and the parentheses around the whole, to compare it."""
    text = re.sub(r"\s+", "", text)
    while text.startswith("(") and closing(text, 0) == len(text):
        text = text[1:-1]
    return text


def _conditions(node: Node, start: int, masked: str) -> Iterator[tuple[Node, bool]]:
    """Yield the conditions known where a node is evaluated, and whether they are false there.

    The innermost comes first; those before the offset `start` belong to another function.
    """
    for child, parent in pairwise((node, *ancestors(node))):
        if parent.start_byte < start:
            return
        condition, left = part(parent, "condition"), part(parent, "left")
        if parent.type == "compound_statement":
            for sibling in reversed(parent.named_children):
                gone = _left_on(sibling) if sibling.start_byte < child.start_byte else None
                if gone is not None:
                    yield gone, True
        elif left is not None and _sign(parent, masked) == "&&" and child == part(parent, "right"):
            yield left, False
        elif condition is None or child == condition:
            continue
        elif parent.type in ("for_statement", "while_statement"):
            if child != part(parent, "initializer"):
                yield condition, False
        elif parent.type not in ("if_statement", "conditional_expression"):
            continue
        elif child in (part(parent, "consequence"), part(parent, "alternative")):
            yield condition, child == part(parent, "alternative")


def bounds_at(node: Node, start: int, masked: str) -> tuple[Bound, ...]:
    """List what is known to be bounded where a node is evaluated, in the function from `start`."""
    return tuple(b for known in _conditions(node, start, masked) for b in _bounds(*known, masked))


def _left_on(statement: Node) -> Node | None:
    # the condition on which it returns or goes on
    if statement.type != "if_statement" or part(statement, "alternative"):
        return None
    body = part(statement, "consequence")
    while body is not None and body.type == "compound_statement":
        body = body.named_children[-1] if body.named_children else None
    return part(statement, "condition") if body is not None and body.type in _LEAVES else None


def _bounds(condition: Node, negated: bool, masked: str) -> Iterator[Bound]:
    while condition.type in ("condition_clause", "parenthesized_expression"):
        value = part(condition, "value") or next(iter(condition.named_children), None)
        if value is None:
            break
        condition = value
    sign = _sign(condition, masked)
    left, right = part(condition, "left"), part(condition, "right")
    if left is None or right is None:
        return
    if sign == ("||" if negated else "&&"):
        yield from _bounds(left, negated, masked)
        yield from _bounds(right, negated, masked)
    elif sign in _FLIPPED:
        sign = _FLIPPED[sign] if negated else sign
        small, large = (left, right) if sign in ("<", "<=") else (right, left)
        limit = fold(text_of(large, masked))
        what = bare(fold(text_of(small, masked)))
        yield Bound(what, f"({limit}) + 1" if sign in ("<=", ">=") else limit)


def _sign(node: Node, masked: str) -> str:
    return text_of(part(node, "operator"), masked) if node.type == "binary_expression" else ""


_PARTS = ("field_expression", "parenthesized_expression", "subscript_expression")
_ELEMENTS = ("subscript_expression", "pointer_expression", "argument_list")
_LOOPS = ("for_statement", "while_statement", "do_statement")
# `x + i` in them is an element, elsewhere a pointer that is handed on
_ELEMENT_CALLS = re.compile(r"__ld\w+|__st\w+|atomic\w+")


@dataclass(frozen=True, slots=True)
class Access:
    """One access of an array: its index, None where it cannot be told; innermost bounds first.

    `loop_end` is the end of the outermost loop around it, 0 where it is in none. What cannot be
    told is taken to read and to write.
    """

    array: str
    index: str | None
    bounds: tuple[Bound, ...]
    at: int
    line: int
    reads: bool = True
    writes: bool = True
    loop_end: int = 0


def accesses_of(source: SourceFile, kernel: KernelFunction) -> tuple[Access, ...]:
    """List the accesses of the arrays that the kernel is handed, through local pointers too."""
    arrays = {p.name for p in kernel.parameters if p.pointers == 1 and p.name}
    return tuple(_AccessReader(source.masked, *kernel.body).accesses(arrays))


@dataclass(frozen=True, slots=True)
class _AccessReader:
    masked: str
    start: int
    end: int

    def accesses(self, arrays: set[str]) -> Iterator[Access]:
        lines = LineIndex(self.masked)
        # a local pointer stands for an array and an offset
        pointers = {name: (name, "0") for name in arrays}
        for node in walk(parse_tree(self.masked)):
            if node.type != "identifier" or not self.start <= node.start_byte < self.end:
                continue
            name, parent = self.text(node), node.parent
            if name not in pointers or parent is None:
                continue
            if parent.type in ("pointer_declarator", "parameter_declaration"):
                continue
            array, offset = pointers[name]
            if moved := self.moved(node, parent):
                pointers[name] = array, _sum(offset, moved)
                continue
            alias, further = self.alias(node, parent)
            if alias and alias not in pointers:
                pointers[alias] = array, _sum(offset, further)
                continue
            index = self.index(node, parent)
            reads, writes = (True, True) if index is None else self.use(parent)
            yield Access(
                array=array,
                index=None if index is None else _sum(offset, index),
                bounds=bounds_at(node, self.start, self.masked),
                at=node.start_byte,
                line=lines.at(node.start_byte),
                reads=reads,
                writes=writes,
                loop_end=max((loop.end_byte for loop in self.loops(node)), default=0),
            )

    def text(self, node: Node | None) -> str:
        return fold(text_of(node, self.masked))

    def moved(self, node: Node, parent: Node) -> str:
        # array += offset; once, not in a loop
        right = part(parent, "right")
        if parent.type != "assignment_expression" or right == node:
            return ""
        if self.text(part(parent, "operator")) != "+=" or any(self.loops(parent)):
            return ""
        return self.text(right)

    def loops(self, node: Node) -> Iterator[Node]:
        inside = (around for around in ancestors(node) if around.start_byte >= self.start)
        return (around for around in inside if around.type in _LOOPS)

    def alias(self, node: Node, parent: Node | None) -> tuple[str, str]:
        # const T* row = array + offset;  const T* row = &array[offset];
        value, offset = node, "0"
        if parent is not None and parent.type == "subscript_expression":
            offset = self.indices(parent)
            value, parent = parent, parent.parent
            if parent is None or parent.type != "pointer_expression":
                return "", ""
            value, parent = parent, parent.parent
        elif parent is not None and _sign(parent, self.masked) == "+":
            offset = self.other(parent, node)
            value, parent = parent, parent.parent
        declared = part(parent, "declarator")
        if parent is None or parent.type != "init_declarator":
            return "", ""
        if declared is None or declared == value or "pointer" not in declared.type:
            return "", ""
        name = re.search(r"(\w+)$", self.text(declared))
        return (name[1], offset) if name else ("", "")

    def index(self, node: Node, parent: Node) -> str | None:
        if parent.type == "subscript_expression":
            # `&x[i]` for whoever is not known to touch only that element
            around = parent.parent
            handed_on = around is not None and around.type == "pointer_expression"
            if around is None or not handed_on or self.is_dereference(around):
                return self.indices(parent)
            return self.indices(parent) if self.called(around.parent) else None
        if self.is_dereference(parent) or self.called(parent):
            return "0"
        if _sign(parent, self.masked) != "+":
            return None
        around = parent.parent
        if around is not None and around.type == "parenthesized_expression":
            around = around.parent
        touched = self.is_dereference(around) or self.called(around)
        return self.other(parent, node) if touched else None

    def is_dereference(self, node: Node | None) -> bool:
        pointer = node is not None and node.type == "pointer_expression"
        return pointer and self.text(node).startswith("*")

    def use(self, element: Node | None) -> tuple[bool, bool]:
        while element is not None and element.type not in _ELEMENTS:
            element = element.parent
        if element is None:
            return True, True
        call, around = self.called(element), element.parent
        if around is not None and around.type == "pointer_expression":
            call, around = self.called(around.parent), around.parent
            if not call or not self.text(element.parent).startswith("&"):
                return True, True
        if call:
            return not call.startswith("__st"), not call.startswith("__ld")
        while around is not None and around.type in _PARTS:
            element, around = around, around.parent
        if around is None or around.type == "update_expression":
            return True, True
        if around.type == "argument_list":
            return True, self.text(part(around.parent, "function")).endswith("swap")
        if around.type == "assignment_expression" and part(around, "left") == element:
            return self.text(part(around, "operator")) != "=", True
        return True, False

    def called(self, arguments: Node | None) -> str:
        if arguments is None or arguments.type != "argument_list":
            return ""
        name = self.text(part(arguments.parent, "function"))
        return name if _ELEMENT_CALLS.fullmatch(name) else ""

    def indices(self, subscript: Node) -> str:
        inside = part(subscript, "indices")
        return self.text(inside)[1:-1].strip() if inside is not None else "0"

    def other(self, binary: Node, node: Node) -> str:
        left = part(binary, "left")
        return self.text(part(binary, "right") if left == node else left) or "0"


def _sum(offset: str, index: str) -> str:
    if offset == "0":
        return index
    return offset if index == "0" else f"({offset}) + ({index})"
