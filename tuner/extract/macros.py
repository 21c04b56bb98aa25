"""The project's own macros, expanded as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tuner.extract.items import Item
from tuner.source.text import closing, fold, split_list

_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?", re.MULTILINE)
_LINE = re.compile(r"(?:[^\n\\]|\\\n|\\.)*")
_MAX_DEPTH = 6
# what stands for a piece of code that is handed to a macro
CODE = "the_code_that_is_passed"


@dataclass(frozen=True, slots=True)
class Macro:
    """One macro: its parameters, None for one without a list, and its text."""

    name: str
    parameters: tuple[str, ...] | None
    body: str


def macros_of(items: Iterable[Item]) -> dict[str, Macro]:
    """Map names to the macros that the files define, the last of each name."""
    codes = (item.code for item in items if item.kind == "macro")
    return {macro.name: macro for code in codes for macro in macros_in(code)}


def macros_in(code: str) -> Iterator[Macro]:
    """Yield the macros that a piece of code defines."""
    for match in _DEFINE.finditer(code):
        end = _LINE.match(code, match.end())
        body = code[match.end() : end.end() if end else match.end()]
        listed = match[2]
        names = None if listed is None else tuple(p for p, _ in split_list(listed[1:-1]))
        yield Macro(match[1], names, fold(body))


def expanded(macro: Macro, arguments: tuple[str, ...], known: Mapping[str, Macro]) -> str:
    """Expand one use of a macro, and the macros in it; code that is passed is left aside."""
    return _expanded(macro, arguments, known, 0)


def _expanded(
    macro: Macro, arguments: tuple[str, ...], known: Mapping[str, Macro], depth: int
) -> str:
    passed = tuple(CODE if "{" in text else text for text in arguments)
    values: dict[str, str] = {}
    for place, name in enumerate(macro.parameters or ()):
        if name.endswith("..."):
            values[name.removesuffix("...").strip() or "__VA_ARGS__"] = ", ".join(passed[place:])
        elif place < len(passed):
            values[name] = passed[place]
    text = re.sub(r"(?<!#)#\s*\w+", '""', macro.body)
    text = re.sub(r"[A-Za-z_]\w*", lambda match: values.get(match[0], match[0]), text)
    text = re.sub(r"\s*##\s*", "", text)
    return text if depth >= _MAX_DEPTH else _inside(text, known, macro.name, depth)


def _inside(text: str, known: Mapping[str, Macro], own: str, depth: int) -> str:
    pieces, at = [], 0
    for match in re.finditer(r"([A-Za-z_]\w*)\s*(?=\()", text):
        inner = known.get(match[1])
        if match.start() < at or inner is None or inner.parameters is None or inner.name == own:
            continue
        end = closing(text, match.end())
        if end is None:
            continue
        arguments = tuple(piece for piece, _ in split_list(text[match.end() + 1 : end - 1]))
        pieces += [text[at : match.start()], _expanded(inner, arguments, known, depth + 1)]
        at = end
    return "".join([*pieces, text[at:]])
