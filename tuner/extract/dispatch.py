"""What host code says the names of a templated launch stand for: dispatch macros and callers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

from tuner.extract.chunks import template_end
from tuner.extract.macros import Macro, expanded
from tuner.extract.standins import dispatched_types
from tuner.source import SourceFile
from tuner.source.assignments import assigned
from tuner.source.facts import IDENTIFIER, Span
from tuner.source.text import closing, closing_angle, fold, split_list

_INVOKED = re.compile(r"\b([A-Z][A-Z0-9_]{3,})\s*(?=\()")
_GIVEN = re.compile(
    r"\busing\s+(\w+)\s*=\s*([^;{}]+);|\btypedef\s+([\w:]+)\s+(\w+)\s*;"
    r"|\bconstexpr\s+[\w:\s]+?\b(\w+)\s*=\s*([^;{}]+);"
)
_MAX_DEPTH = 4
_MAX_ENVIRONMENTS = 64

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HostScope:
    """Host code with the project's macros: says what names mean at a place."""

    source: SourceFile
    macros: Mapping[str, Macro]

    def environments(self, at: int) -> list[Environment]:
        """List what the names around an offset may stand for, one mapping for each way there."""
        return list(islice(self._environments(at, 0), _MAX_ENVIRONMENTS)) or [{}]

    def _environments(self, at: int, depth: int) -> Iterator[Environment]:
        own = [dict(pairs) for pairs in product(*self._dispatched(at))]
        outside = [*self._called(at, depth)] or [{}]
        for inner, outer in product(own or [{}], outside):
            yield {**outer, **inner}

    def _dispatched(self, at: int) -> Iterator[list[tuple[str, str]]]:
        masked = self.source.masked
        for match in _INVOKED.finditer(masked, 0, at):
            end = closing(masked, match.end())
            line = masked.rfind("\n", 0, match.start()) + 1
            if end is None or end <= at or masked[line : match.start()].lstrip().startswith("#"):
                continue
            pieces = split_list(masked[match.end() + 1 : end - 1])
            arguments = tuple(fold(piece) for piece, _ in pieces)
            for name, values in self._given(match[1], arguments).items():
                yield [(name, value) for value in values]

    def _given(self, name: str, arguments: tuple[str, ...]) -> dict[str, list[str]]:
        macro = self.macros.get(name)
        if macro is None or macro.parameters is None:
            types = dispatched_types(name, arguments)
            return {"scalar_t": list(types)} if types else {}
        found: dict[str, list[str]] = {}
        for match in _GIVEN.finditer(expanded(macro, arguments, self.macros)):
            key = match[1] or match[4] or match[5]
            value = fold(match[2] or match[3] or match[6])
            if value not in found.setdefault(key, []):
                found[key].append(value)
        return found

    def _called(self, at: int, depth: int) -> Iterator[Environment]:
        if depth >= _MAX_DEPTH:
            return
        around = [
            (definition.name, definition.span)
            for definition in self.source.definitions
            if definition.kind in ("function", "class")
            and definition.span[0] <= at < definition.span[1]
        ]
        for name, span in sorted(around, key=lambda found: found[1]):
            parameters = template_names(self.source.masked[slice(*span)])
            for place, arguments in self._stated(name, span) if parameters else ():
                known = self._variables(place)
                stated = (substituted(text, known) for text in arguments)
                values = dict(zip(parameters, stated, strict=False))
                for outer in self._environments(place, depth + 1):
                    yield {key: substituted(text, outer) for key, text in values.items()}

    def _variables(self, at: int) -> Environment:
        functions = tuple(d.span for d in self.source.definitions if d.kind == "function")
        return {
            name: value.text for name, value in assigned(self.source.masked, functions, at).items()
        }

    def _stated(self, name: str, own: Span) -> Iterator[tuple[int, tuple[str, ...]]]:
        masked = self.source.masked
        for match in re.finditer(rf"(?<!struct )(?<!class )\b{re.escape(name)}\s*(?=<)", masked):
            end = closing_angle(masked, match.end())
            if end is None or own[0] <= match.start() < own[1]:
                continue
            pieces = split_list(masked[match.end() + 1 : end - 1], angles=True)
            yield match.start(), tuple(fold(piece) for piece, _ in pieces)


def template_names(text: str) -> tuple[str, ...]:
    """Name the template parameters of a definition, () for one that is no template."""
    head = text[: template_end(text)]
    opening = head.find("<")
    end = closing_angle(head, opening) if opening >= 0 else None
    if end is None:
        return ()
    pieces = split_list(head[opening + 1 : end - 1], angles=True)
    names = (IDENTIFIER.findall(piece.partition("=")[0]) for piece, _ in pieces)
    return tuple(found[-1] for found in names if found)


def substituted(text: str, environment: Environment) -> str:
    """Write what names stand for in a text, where `environment` knows it."""

    def value(match: re.Match[str]) -> str:
        found = environment.get(match[0], match[0])
        # `n + 1` stays one operand where the name was one
        simple = match[0] == text or re.fullmatch(r"[\w:<>, ]*", found)
        return found if simple else f"({found})"

    return re.sub(r"(?<![\w.:])[A-Za-z_]\w*", value, text)
