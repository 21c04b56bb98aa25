"""Scan C++ text where a syntax tree is not needed or not to be had: masking, brackets, lists."""

from __future__ import annotations

import re

from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression

_HIDDEN = re.compile(
    r'R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"'
    r"|//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z)"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.[^'\n]{0,8}|[^'\\\n])'",
    re.DOTALL,
)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_NUMBER = re.compile(r"\b(0[xX][\da-fA-F']+|0[bB][01']+|\d[\d']*)([uUlLzZ]*)\b(?!\.)")


def mask(text: str) -> str:
    """Blank comments, strings and character literals; offsets and lines stay."""
    return _HIDDEN.sub(lambda match: re.sub(r"[^\r\n]", " ", match[0]), text)


def closing(text: str, start: int) -> int | None:
    """Find the end (exclusive) of the bracket that opens at `start`; None where it never closes."""
    stack: list[str] = []
    for position in range(start, len(text)):
        character = text[position]
        if character in _PAIRS:
            stack.append(_PAIRS[character])
        elif stack and character == stack[-1]:
            stack.pop()
            if not stack:
                return position + 1
    return None


def closing_angle(text: str, start: int) -> int | None:
    """Find the end (exclusive) of the template list that opens at `start`."""
    depth, position = 0, start
    while position < len(text):
        character = text[position]
        if character in _PAIRS:
            end = closing(text, position)
            if end is None:
                return None
            position = end
            continue
        depth += (character == "<") - (character == ">")
        position += 1
        if depth == 0:
            return position
    return None


def split_list(text: str, *, angles: bool = False) -> list[tuple[str, int]]:
    """Split at top-level commas into stripped pieces with their offsets; `angles` nest too."""
    pieces, depth, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        inside = closing(text, position) if character in _PAIRS else None
        if character == "," and depth == 0:
            pieces.append((start, text[start:position]))
            start = position + 1
        elif angles:
            depth += (character == "<") - (character == ">")
        position = inside or position + 1
    pieces.append((start, text[start:]))
    found = [(piece.strip(), at + len(piece) - len(piece.lstrip())) for at, piece in pieces]
    return [] if len(found) == 1 and not found[0][0] else found


def fold(text: str) -> str:
    """Fold white space and joined lines to single spaces."""
    return " ".join(text.replace("\\\n", " ").replace("\\\r\n", " ").split())


def number(text: str) -> int | bool | None:
    """Compute a C expression made of integer literals alone; None for anything else."""
    if text in ("true", "false"):
        return text == "true"
    plain = _NUMBER.sub(lambda match: str(_integer(match[1])), text)
    if re.search(r"[A-Za-z_.\"',]", plain):
        return None
    try:
        value = Expression.parse(re.sub(r"(?<!/)/(?!/)", "//", plain)).evaluate({})
    except ExpressionError:
        return None
    return value if isinstance(value, int) else None


def _integer(literal: str) -> int:
    digits = literal.replace("'", "")
    if not digits.isdigit():
        return int(digits, 0)
    return int(digits, 8 if re.fullmatch(r"0[0-7]+", digits) else 10)
