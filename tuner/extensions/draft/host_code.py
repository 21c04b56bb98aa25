"""What host code says around launches: functions, calls, conditions on the way, allocations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from tuner.source.accesses import Assigned, conditions_at, split_condition
from tuner.source.facts import KernelFunction, LineIndex, SourceFile, Span, bare_name
from tuner.source.kernels import read_kernel
from tuner.source.syntax import (
    Node,
    ancestors,
    closing,
    fold,
    listed,
    parse_tree,
    part,
    span_of,
    split_list,
    text_of,
    walk,
)

_FUNCTIONS = ("function_definition", "lambda_expression")
_LEAVING = ("return_statement", "throw_statement", "break_statement")
_MALLOC = re.compile(r"\bcuda(?:Malloc(?:Managed|Async|Host)?|HostAlloc)\s*(?:<[^<>()]*>)?(?=\()")
_CONTAINER = re.compile(
    r"\b(?:std\s*::\s*|thrust\s*::\s*)?(?:\w+_)?vector\s*<\s*([\w:\s]+?)\s*>\s*(\w+)\s*(?=[({])"
)
# `&buffers[0]`: one of an array of pointers
_POINTER = re.compile(r"([A-Za-z_][\w.]*)\s*(?:\[[^\]]*\]\s*)?\)*$")
_CAST = re.compile(r"^(?:\([\w:\s]+\*\s*\)|(?:static|reinterpret)_cast<[^<>]*>)\s*")
_HEAP = re.compile(r"(?:std::)?(?:malloc|aligned_alloc)\s*(?=\()")
_CLEARED = re.compile(r"(?:std::)?calloc\s*(?=\()")
_MAX_CASTS = 3
_NEW = re.compile(r"new\s+([\w:\s]+?)\s*(?=\[)")


@dataclass(frozen=True, slots=True)
class CallSite:
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


@lru_cache(maxsize=8)
def functions_in(masked: str) -> tuple[KernelFunction, ...]:
    """List the functions in masked code whose parameters are known, without their types."""
    return tuple(head for head in _heads_in(masked, Path(), {}) if head.parameters_known)


def heads_of(source: SourceFile) -> tuple[KernelFunction, ...]:
    """Read the heads of all functions that the file defines, on whichever side they run."""
    return tuple(_heads_in(source.masked, source.path, source.aliases))


def _heads_in(masked: str, path: Path, aliases: Mapping[str, str]) -> Iterator[KernelFunction]:
    lines = LineIndex(masked)
    for node in walk(parse_tree(masked)):
        body = part(node, "body") if node.type == "function_definition" else None
        if body is None:
            continue
        inside = (body.start_byte, body.end_byte)
        if (head := read_kernel(masked, span_of(node), inside, path, lines, aliases)) is not None:
            yield head


@dataclass(frozen=True, slots=True)
class Condition:
    """What an `if` asks on the way to a place in host code, and the answer that leads there."""

    text: str
    holds: bool


def conditions_of(masked: str, at: int, *, chosen: bool = False) -> tuple[Condition, ...]:
    """List what has to hold in its function for `at` to be reached, where an `if` says it.

    Of a value that is `chosen` a `?:` says it too.
    """
    conditions: list[Condition] = []
    node = parse_tree(masked).descendant_for_byte_range(at, at)
    around = [*ancestors(node)] if node is not None else []
    inside = [*takewhile(lambda one: one.type not in _FUNCTIONS, around)]
    start = inside[-1].start_byte if inside else at
    for condition in conditions_at(node, start, masked) if node is not None else ():
        if condition.is_asked or chosen:
            # of `a && b` both hold
            parts = split_condition(condition.node, masked, "?" if condition.is_false else "&&")
            texts = (fold(text_of(one, masked)) for one in parts)
            conditions += (Condition(text, not condition.is_false) for text in texts)
    for one in inside:
        conditions += _of_case(one, masked) if one.type == "case_statement" else ()
    return tuple(conditions)


def _of_case(node: Node, masked: str) -> list[Condition]:
    """Say which values of its `switch` lead to a `case`, those that fall through to it too."""
    body = node.parent
    switch = body.parent if body is not None else None
    if body is None or switch is None or switch.type != "switch_statement":
        return []
    value = fold(text_of(part(switch, "condition", "value"), masked))
    cases = body.named_children
    first = place = cases.index(node)
    while first and not _leaves(cases[first - 1]):
        first -= 1
    into, whole = cases[first : place + 1], all(one.type == "case_statement" for one in cases)
    texts = [fold(text_of(part(one, "value"), masked)) for one in into]
    if not whole:
        return []
    if all(texts):
        return [Condition(" || ".join(f"({value}) == ({text})" for text in texts), True)]
    others = (part(one, "value") for one in cases if one not in into)
    asked = (f"({value}) == ({fold(text_of(one, masked))})" for one in others if one is not None)
    return [Condition(text, False) for text in asked]


def _leaves(node: Node) -> bool:
    last = node.named_children[-1:]
    while last and last[0].type == "compound_statement":
        last = last[0].named_children[-1:]
    return any(one.type in _LEAVING for one in last)


@lru_cache(maxsize=8)
def calls_in(masked: str) -> tuple[CallSite, ...]:
    """List the plain calls in masked code, launches aside."""
    lines, found = LineIndex(masked), []
    for node in walk(parse_tree(masked)):
        function, arguments = part(node, "function"), part(node, "arguments")
        if node.type != "call_expression" or function is None or arguments is None:
            continue
        if any(child.type == "kernel_call_syntax" for child in node.named_children):
            continue
        name = bare_name(text_of(function, masked))
        texts = split_list(text_of(arguments, masked)[1:-1], angles=True)
        passed = tuple(fold(text) for text, _ in texts)
        found.append(CallSite(name, passed, node.start_byte, lines.at(node.start_byte)))
    return tuple(found)


def allocations_in(
    source: SourceFile, span: Span, variables: dict[str, Assigned]
) -> tuple[Allocation, ...]:
    """List the allocations in a piece of host code, those that `variables` are set to too."""
    masked, lines = source.masked, LineIndex(source.text)
    allocations: list[Allocation | None] = []
    for match in _MALLOC.finditer(masked, *span):
        pieces, _ = listed(masked, match.end())
        target = _POINTER.search(pieces[0]) if len(pieces) > 1 else None
        if target is not None:
            how = re.sub(r"\s*<.*", "", match[0]).strip()
            allocations.append(Allocation(target[1], pieces[1], True, how, lines.at(match.start())))
    for match in _CONTAINER.finditer(masked, *span):
        pieces, _ = listed(masked, match.end())
        # braces list the elements where there are several
        if pieces and (masked[match.end()] == "(" or len(pieces) == 1):
            line = lines.at(match.start())
            allocations.append(Allocation(match[2], pieces[0], False, "the vector", line))
    allocations += [_on_heap(n, value.text, lines.at(value.at)) for n, value in variables.items()]
    return tuple(allocation for allocation in allocations if allocation is not None)


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
    pieces, _ = listed(plain, match.end())
    if cleared is not None:
        size = f"({pieces[0]}) * {pieces[1]}" if len(pieces) == 2 else ""
        return Allocation(name, size, True, "calloc", line)
    return Allocation(name, pieces[-1] if pieces else "", True, "malloc", line)
