"""The tokens of preprocessed C++ that matter when it is rewritten: words, literals, markers."""

from __future__ import annotations

import re

# A line `# 12 "file.h" 1 3`: what follows is line 12 of that file; 1 says that it was just entered.
MARKER = re.compile(r'^# (\d+) "((?:[^"\\\n]|\\.)*)"([ \d]*)\n', re.M)

STRING = r'(?:u8|[uUL])?R"(?P<raw>[^()\\\s]{0,16})\(.*?\)(?P=raw)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"'
# Numbers and words are taken whole, so that a quote after them is told from a digit separator.
TOKEN = re.compile(
    rf"(?P<marker>^\#[^\n]*$)|(?P<string>{STRING})|(?P<character>'(?:\\.|[^'\\\n])+')"
    r"|(?P<number>\.?\d(?:'?\w|\.|(?<=[eEpP])[+-])*)|(?P<word>[^\W\d][\w$]*)|(?P<mark>[^\w\s])",
    re.DOTALL | re.MULTILINE,
)


def unquoted(literal: str) -> str:
    """Return what a string literal says; `\\n` and `\\t` both as line ends."""
    if "R" in literal[: literal.index('"')]:
        return literal[literal.index("(") + 1 : literal.rindex(")")]
    return re.sub(r"\\[nt]", "\n", literal[literal.index('"') + 1 : -1])


def line_at(text: str, position: int, line: int) -> int:
    """Return the line of `position` in its file; `line` is that of the text's start."""
    start = 0
    for marker in MARKER.finditer(text, 0, position):
        start, line = marker.end(), int(marker[1])
    return line + text.count("\n", start, position)


def same_lines(removed: str, replacement: str) -> str:
    """Keep the line breaks and markers of what is replaced, so that later lines stay right."""
    lines = removed.splitlines(keepends=True)
    kept = ["\n" if line.endswith("\n") else "" for line in lines]
    return replacement + "".join(
        line if MARKER.match(line) else end for line, end in zip(lines, kept, strict=True)
    )
