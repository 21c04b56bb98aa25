"""Variables that are given one value and keep it, and where: what a name stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.source.facts import Span
from tuner.source.text import closing, fold

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
