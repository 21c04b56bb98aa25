"""Where a kernel reads and writes its arrays: each index as text, and what bounds it there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.source.bounds import Bound, Bounds, operator_of
from tuner.source.facts import KernelFunction, Lines, SourceFile
from tuner.source.text import fold
from tuner.source.tree import Node, parse_tree, text_of, walk

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
    return tuple(_Reader(source, kernel, Lines(source.text)).accesses(arrays))


@dataclass(frozen=True, slots=True)
class _Reader:
    source: SourceFile
    kernel: KernelFunction
    lines: Lines

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
