"""Functions of a source, who calls them with what, and the memory that host code asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.source.accesses import Assigned
from tuner.source.facts import Lines, SourceFile, Span
from tuner.source.kernels import read_kernel
from tuner.source.text import closing, fold, split_list
from tuner.source.tree import parse_tree, span_of, text_of, walk

_MALLOC = re.compile(r"\bcuda(?:Malloc(?:Managed|Async|Host)?|HostAlloc)\s*(?:<[^<>()]*>)?(?=\()")
_CONTAINER = re.compile(
    r"\b(?:std\s*::\s*|thrust\s*::\s*)?(?:\w+_)?vector\s*<\s*([\w:\s]+?)\s*>\s*(\w+)\s*(?=[({])"
)
_POINTER = re.compile(r"([A-Za-z_][\w.]*)\s*\)*$")
_CAST = re.compile(r"^(?:\([\w:\s]+\*\s*\)|(?:static|reinterpret)_cast<[^<>]*>)\s*")
_HEAP = re.compile(r"(?:std::)?(?:malloc|aligned_alloc)\s*(?=\()")
_CLEARED = re.compile(r"(?:std::)?calloc\s*(?=\()")
_MAX_CASTS = 3
_NEW = re.compile(r"new\s+([\w:\s]+?)\s*(?=\[)")


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function with a body, and the names of its parameters; "" for one without a name."""

    name: str
    parameters: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function, with its arguments as text."""

    name: str
    arguments: tuple[str, ...]
    at: int
    line: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that a variable points to: `size` as text, in bytes, or in elements of a type.

    `how` is what was called, for comments.
    """

    target: str
    size: str
    in_bytes: bool
    how: str
    line: int


def functions_of(source: SourceFile) -> tuple[HostFunction, ...]:
    """List the functions that the file defines."""
    lines = Lines(source.text)
    found = []
    for node in walk(parse_tree(source.masked)):
        body = node.child_by_field_name("body") if node.type == "function_definition" else None
        if body is None:
            continue
        read = read_kernel(
            source.masked,
            span_of(node),
            (body.start_byte, body.end_byte),
            path=source.path,
            lines=lines,
            aliases=source.aliases,
        )
        if read is not None and read.parameters_known:
            names = tuple(parameter.name for parameter in read.parameters)
            found.append(HostFunction(read.name, names, span_of(node)))
    return tuple(found)


def calls_of(source: SourceFile) -> tuple[Call, ...]:
    """List the plain calls in the file, launches aside."""
    lines, found = Lines(source.text), []
    for node in walk(parse_tree(source.masked)):
        function = node.child_by_field_name("function")
        arguments = node.child_by_field_name("arguments")
        if node.type != "call_expression" or function is None or arguments is None:
            continue
        if any(child.type == "kernel_call_syntax" for child in node.named_children):
            continue
        name = text_of(function, source.masked).split("<", 1)[0].rsplit("::", 1)[-1].strip()
        texts = split_list(text_of(arguments, source.masked)[1:-1], angles=True)
        passed = tuple(fold(text) for text, _ in texts)
        found.append(Call(name, passed, node.start_byte, lines.at(node.start_byte)))
    return tuple(found)


def allocations_in(
    source: SourceFile, span: Span, variables: dict[str, Assigned]
) -> tuple[Allocation, ...]:
    """List the allocations in a piece of host code, those that `variables` are set to too."""
    lines = Lines(source.text)
    heap = (
        found
        for name, value in variables.items()
        if (found := _on_heap(name, value.text, lines.at(value.at))) is not None
    )
    return (*_from_cuda(source.masked, span, lines), *_contained(source.masked, span, lines), *heap)


def _from_cuda(masked: str, span: Span, lines: Lines) -> Iterator[Allocation]:
    for match in _MALLOC.finditer(masked, *span):
        end = closing(masked, match.end())
        pieces = [fold(text) for text, _ in split_list(masked[match.end() + 1 : (end or 1) - 1])]
        target = _POINTER.search(pieces[0]) if len(pieces) > 1 else None
        if target is not None:
            how = re.sub(r"\s*<.*", "", match[0]).strip()
            yield Allocation(target[1], pieces[1], True, how, lines.at(match.start()))


def _contained(masked: str, span: Span, lines: Lines) -> Iterator[Allocation]:
    for match in _CONTAINER.finditer(masked, *span):
        end = closing(masked, match.end())
        pieces = [fold(text) for text, _ in split_list(masked[match.end() + 1 : (end or 1) - 1])]
        # braces list the elements where there are several
        if pieces and (masked[match.end()] == "(" or len(pieces) == 1):
            yield Allocation(match[2], pieces[0], False, "the vector", lines.at(match.start()))


def _on_heap(name: str, text: str, line: int) -> Allocation | None:
    plain = text
    for _ in range(_MAX_CASTS):
        plain = _CAST.sub("", plain)
        if plain.startswith("(") and closing(plain, 0) == len(plain):
            plain = plain[1:-1].strip()
    if match := _NEW.match(plain):
        end = closing(plain, match.end())
        return Allocation(name, plain[match.end() + 1 : (end or 1) - 1], False, "new", line)
    cleared = _CLEARED.match(plain)
    match = cleared or _HEAP.match(plain)
    end = closing(plain, match.end()) if match is not None else None
    if match is None or end != len(plain):
        return None
    pieces = [fold(piece) for piece, _ in split_list(plain[match.end() + 1 : end - 1])]
    if cleared is not None:
        size = f"({pieces[0]}) * {pieces[1]}" if len(pieces) == 2 else ""
        return Allocation(name, size, True, "calloc", line)
    return Allocation(name, pieces[-1] if pieces else "", True, "malloc", line)
