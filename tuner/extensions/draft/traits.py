"""What a class that is a kernel's template argument says: its types and its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tuner.source.facts import KernelFunction, Span
from tuner.source.syntax import closing, fold, listed, split_list

_TYPE = re.compile(r"\busing\s+(\w+)\s*=\s*(?:typename\s+)?([^;]+);")
# `static constexpr int rows = 4, cols = 8;`, `enum { rows = 4, cols = 8 };`
_NUMBERS = re.compile(
    r"\bstatic\s+(?:constexpr\s+(?:const\s+)?|const\s+)(?:unsigned\s+)?[\w:]+\s+(\w+\s*=[^;]+);"
    r"|\benum\b[^;{}()]*\{([^{}]*)\}"
)
_FUNCTION = re.compile(
    r"\bstatic\s+constexpr\s+[\w:]+\s+(\w+)\s*\(\s*\)[^;{}]*\{\s*return\s+([^;]+);\s*\}"
)
_LONGEST_LIST = 2000
_TEMPLATE = re.compile(r"(?:\w+\s*::\s*)*(\w+)\s*<(.*)>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Traits:
    """Types by the names that the kernel has for them, and numbers by their bare names.

    `places` are where the class has what the template argument says, for numbers that are set to
    it. A function without parameters is a number by a name with parentheses, `tile()`.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)


def traits_of(masked: str, kernel: KernelFunction, instance: tuple[str, ...]) -> Traits:
    """Read the classes among the template arguments of an instance of a kernel."""
    types: dict[str, str] = {}
    numbers: dict[str, str] = {}
    places: dict[str, tuple[Span, ...]] = {}
    for parameter, text in zip(kernel.template, instance, strict=False):
        if parameter.is_type:
            own = members_of(masked, text)
            types |= {f"{parameter.name}::{name}": of for name, of in own.types.items()}
            numbers |= own.numbers
            places |= own.places
    if types:
        known = _TYPE.findall(masked, *kernel.body)
        types |= {name: types[of.strip()] for name, of in known if of.strip() in types}
    return Traits(types, numbers, places)


def members_of(masked: str, c_type: str) -> Traits:
    """Read a class, or one instance of a class template, such as `Pack<float>`."""
    match = _TEMPLATE.fullmatch(c_type.strip())
    pieces = split_list(match[2], angles=True) if match is not None else []
    passed = tuple(fold(piece) for piece, _ in pieces)
    found = _class(masked, match[1] if match is not None else c_type.strip(), passed)
    if found is None:
        return Traits()
    names, body, start = found
    known = dict(zip(names, passed, strict=False))
    types: dict[str, str] = {}
    numbers: dict[str, str] = {}
    places: dict[str, tuple[Span, ...]] = {}
    for name, stated in _TYPE.findall(body):
        known[name] = types[name] = _substitute(stated, known)
    for member in _NUMBERS.finditer(body):
        pieces = split_list(member[1] or member[2], angles=True)
        for name, stated in (map(str.strip, p.split("=", 1)) for p, _ in pieces if "=" in p):
            known[name] = numbers[name] = _substitute(stated, known)
            if stated in names:
                used = re.finditer(rf"(?<![\w.:]){stated}\b", body)
                places[name] = tuple((start + m.start(), start + m.end()) for m in used)
                # what is computed from it follows the member
                known[stated] = name
    for function in _FUNCTION.finditer(body):
        numbers[f"{function[1]}()"] = _substitute(function[2], known | {n: n for n in numbers})
    return Traits(types, numbers, places)


# a launch asks for the same few classes again and again
@lru_cache(maxsize=64)
def _class(masked: str, name: str, passed: tuple[str, ...]) -> tuple[list[str], str, int] | None:
    # the template itself, or what it is for these arguments alone
    found: tuple[list[str], str, int] | None = None
    for match in re.finditer(rf"\b(?:struct|class)\s+{name}\b\s*(<?)[^;{{]*(?=\{{)", masked):
        end = closing(masked, match.end()) or match.end()
        before = masked[max(0, match.start() - _LONGEST_LIST) : match.start()]
        head = re.search(r"\btemplate\s*<([^{};]*)>\s*$", before)
        pieces = split_list(head[1], angles=True) if head is not None else []
        names = [fold(piece.partition("=")[0]).split()[-1] for piece, _ in pieces if piece.strip()]
        stated = [*listed(masked, match.start(1))[0]] if match[1] else names
        fits = all(own in (text, *names) for own, text in zip(stated, passed, strict=False))
        if fits and (found is None or match[1]):
            found = stated, masked[match.end() : end], match.end()
    return found


def _substitute(text: str, known: Mapping[str, str]) -> str:
    def word(match: re.Match[str]) -> str:
        own = known.get(match[0], match[0])
        return own if re.fullmatch(r"[\w:]+", own) or "<" in own else f"({own})"

    return fold(re.sub(r"(?<![\w:])[A-Za-z_]\w*", word, text))
