"""The shape of an array from the memory that host code asks for."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from tuner.draft.callers import Host, plain
from tuner.draft.translate import Scope, translate
from tuner.source.calls import Allocation, allocations_in
from tuner.source.facts import IDENTIFIER
from tuner.source.text import number

_MAX_HOPS = 8
_POINTER_OF = re.compile(
    r"(?:thrust\s*::\s*)?raw_pointer_cast\s*\((.*)\)"
    r"|(.+?)\s*(?:\.|->)\s*(?:data|get|begin|data_ptr)\s*(?:<[^<>]*>)?\s*\(\s*\)"
    r"|&\s*(.+?)\s*\[\s*0\s*\]"
)


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
) -> tuple[tuple[str, ...], str] | None:
    """Find the dimensions of what a pointer in the launch points to, and where they come from.

    `axes` maps texts of the launch's own function to axes.
    """
    level, known = 0, dict(axes)
    for _ in range(_MAX_HOPS):
        frame = host.path[level]
        known |= _also(known, frame.variables)
        text = pointer_text(text)
        memory = [
            allocation
            for allocation in allocations_in(host.source, frame.span, dict(frame.variables))
            if allocation.target == text
        ]
        if memory:
            return _shape(memory, _scope(host, level, known), element_bytes)
        if text in frame.variables:
            text = frame.variables[text].text
        elif text in frame.passed and level + 1 < len(host.path):
            text, level = frame.passed[text], level + 1
            known = _at_caller(known, frame.passed)
        else:
            return None
    return None


def _also(known: Mapping[str, str], variables: Mapping[str, object]) -> dict[str, str]:
    # `int n = COUNT;`: what n is an axis for, COUNT is too
    found = {}
    for name, axis in known.items():
        value = plain(str(getattr(variables.get(name), "text", "")))
        if IDENTIFIER.fullmatch(value):
            found[value] = axis
    return found


def _at_caller(known: Mapping[str, str], passed: Mapping[str, str]) -> dict[str, str]:
    return {
        plain(text): known[name]
        for name, text in passed.items()
        if name in known and number(text) is None
    }


def _scope(host: Host, level: int, known: Mapping[str, str]) -> Scope:
    definitions = {constant.name: constant.value for constant in host.source.constants}
    definitions |= {name: value.text for name, value in host.path[level].variables.items()}
    return Scope(values=known, definitions=definitions, types=host.source.aliases)


def _shape(
    memory: list[Allocation], scope: Scope, element_bytes: int
) -> tuple[tuple[str, ...], str] | None:
    found = {_extents(one, scope, element_bytes) for one in memory}
    extents = found.pop()
    return (
        None if extents is None or found else (extents, f"{memory[0].how}, line {memory[0].line}")
    )


def _extents(memory: Allocation, scope: Scope, element_bytes: int) -> tuple[str, ...] | None:
    size = translate(memory.size, scope)
    if size is None:
        return None
    factors = _factors(ast.parse(size, mode="eval").body)
    if memory.in_bytes and element_bytes == 1:
        factors = [factor for factor in factors if factor != "1"] or factors
    elif memory.in_bytes:
        leading = memory.size.lstrip("( ").startswith("sizeof")
        places = list(range(len(factors))) if leading else list(reversed(range(len(factors))))
        place = next((i for i in places if _divisible(factors[i], element_bytes)), None)
        if place is None:
            return None
        left = int(factors[place]) // element_bytes
        factors[place : place + 1] = [str(left)] if left > 1 or len(factors) == 1 else []
    return tuple(factors) or None


def _factors(node: ast.expr) -> list[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [ast.unparse(node)]


def _divisible(factor: str, element_bytes: int) -> bool:
    return factor.isdigit() and int(factor) % element_bytes == 0 and int(factor) > 0
