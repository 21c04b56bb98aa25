"""What a class that is a kernel's template argument says: its types and its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.source.facts import KernelFunction, Span
from tuner.source.syntax import closing, fold, split_list

_TYPE = re.compile(r"\busing\s+(\w+)\s*=\s*(?:typename\s+)?([^;]+);")
_NUMBER = re.compile(
    r"\bstatic\s+(?:constexpr\s+(?:const\s+)?|const\s+)(?:unsigned\s+)?[\w:]+\s+(\w+)\s*=\s*([^;]+);"
)
_TEMPLATE = re.compile(r"(?:\w+\s*::\s*)*(\w+)\s*<(.*)>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Traits:
    """Types by the names that the kernel has for them, and numbers by their bare names.

    `places` are where a number is set to what the template argument says, and nothing else uses it.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Span] = field(default_factory=dict)


def traits_of(masked: str, kernel: KernelFunction, instance: tuple[str, ...]) -> Traits:
    """Read the classes among the template arguments of an instance of a kernel."""
    types: dict[str, str] = {}
    numbers: dict[str, str] = {}
    places: dict[str, Span] = {}
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
    name = match[1] if match is not None else c_type.strip()
    head = rf"(?:\btemplate\s*<([^{{}};]*)>\s*)?\b(?:struct|class)\s+{name}\b[^;{{]*(?=\{{)"
    found = re.search(head, masked)
    end = closing(masked, found.end()) if found is not None else None
    if found is None or end is None:
        return Traits()
    declared = (piece.partition("=")[0] for piece, _ in split_list(found[1] or "", angles=True))
    names = [fold(piece).split()[-1] for piece in declared]
    start, body = found.end(), masked[found.end() : end]
    pieces = split_list(match[2], angles=True) if match is not None else []
    passed = [fold(piece) for piece, _ in pieces]
    known = dict(zip(names, passed, strict=False))
    types: dict[str, str] = {}
    numbers: dict[str, str] = {}
    places: dict[str, Span] = {}
    for name, stated in _TYPE.findall(body):
        known[name] = types[name] = _substitute(stated, known)
    for member in _NUMBER.finditer(body):
        # `static constexpr int rows = 4, cols = 8;`
        pieces = split_list(f"{member[1]} = {member[2]}", angles=True)
        for name, stated in (piece.split("=", 1) for piece, _ in pieces if "=" in piece):
            known[name.strip()] = numbers[name.strip()] = _substitute(stated, known)
        stated = member[2].strip()
        if stated in names and len(re.findall(rf"\b{stated}\b", body)) == 1:
            places[member[1]] = (start + member.start(2), start + member.end(2))
    return Traits(types, numbers, places)


def _substitute(text: str, known: Mapping[str, str]) -> str:
    def word(match: re.Match[str]) -> str:
        own = known.get(match[0], match[0])
        return own if re.fullmatch(r"[\w:]+", own) or "<" in own else f"({own})"

    return fold(re.sub(r"(?<![\w:])[A-Za-z_]\w*", word, text))
