"""What host code makes of memory, its shape and zeros, followed through variables and callers."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from tuner.extensions.draft.host_values import Host, plain
from tuner.extensions.draft.indices import Shape
from tuner.extensions.draft.translate import Scope, translate
from tuner.source.facts import IDENTIFIER, LineIndex
from tuner.source.launches import Allocation, allocations_in
from tuner.source.syntax import number

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
        found = allocations_in(host.source, frame.span, dict(frame.variables))
        memory = [allocation for allocation in found if allocation.target == text]
        if not memory and (one := _ONE_OF.fullmatch(text)):
            text = one[1]
            memory = [allocation for allocation in found if allocation.target == text]
        if memory:
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
            return LineIndex(host.source.masked).at(match.start())
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
