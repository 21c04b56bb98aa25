"""A preprocessed kernel made into C++: shared memory as statics, hints in PTX dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.compiler.includes import UNIT_NAME

LAUNCH_UNIT = "launch"
REMEDY = (
    "the `host` device can't run this: provide a substitute under `#ifdef __CUDA_ON_HOST__`, or "
    "verify on a GPU"
)

_MARKER = re.compile(r'^# (\d+) "((?:[^"\\\n]|\\.)*)"([ \d]*)\n', re.M)
_STRING = (
    r'R"(?P<raw>[^()\\\s]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"
)
_PARENTHESES = r"\((?:[^()]|\((?:[^()]|\((?:[^()])*\))*\))*\)"
_ATTRIBUTE = rf"__attribute__\s*{_PARENTHESES}|alignas\s*{_PARENTHESES}"
_EXTERN_SHARED = re.compile(
    rf"\bextern\b(?P<before>(?:{_ATTRIBUTE}|[^;{{}}()])*?)\b__shared__\b"
    rf"(?P<after>(?:{_ATTRIBUTE}|[^;{{}}()])*?)\b(?P<name>\w+)\s*\[\s*\]\s*;",
)
_WORD = re.compile(
    rf"(?P<string>{_STRING})|\b(?P<asm>asm|__asm__|__asm)\b"
    r"|(?P<shared>(?:\bstatic\s+)?\b__shared__\b(?:\s+static\b)?)|\b(?P<noinline>__noinline__)\b",
    re.DOTALL,
)
_QUALIFIER = re.compile(r"\s*(?:\b(?:volatile|__volatile__|inline|goto)\b\s*)*\(")
_PIECE = re.compile(rf"(?P<marker>^#[^\n]*$)|(?P<string>{_STRING})|[():]", re.DOTALL | re.MULTILINE)
# Without an effect that a result could show: when the next grid may start, and what to fetch early.
_HINT = re.compile(r"griddepcontrol\.\w+|prefetchu?\.[\w.:]+\s*\[[^\]]*\]")


class NotOnHostError(Exception):
    """Carry the compile error for something that only a GPU can run."""


def to_host(preprocessed: str) -> str:
    """Rewrite the user's part of a preprocessed unit, every line staying where it is.

    `asm` of nothing but `griddepcontrol` and `prefetch` instructions is dropped; any other raises
    `NotOnHostError` with its line.
    """
    return "".join(_rewritten(text, file, line) for text, file, line in _parts(preprocessed))


def _parts(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield runs of own source with the file and line of their start; system headers have none.

    Consecutive markers of one file stay in one run: a statement may lie across them. Whether a
    file is a system header its first marker says: later ones also mark uses of its macros.
    """
    start, file, line = 0, "", 1
    own: dict[str, str] = {}
    for marker in _MARKER.finditer(text):
        system = "3" in marker[3].split() or marker[2].startswith("<")
        name = own.setdefault(marker[2], "" if system else marker[2])
        if name == file:
            continue
        yield text[start : marker.start()], file, line
        start, file, line = marker.start(), name, int(marker[1])
    yield text[start:], file, line


def _rewritten(text: str, file: str, line: int) -> str:
    if not file:
        return text
    text = _EXTERN_SHARED.sub(_dynamic_shared, text)
    pieces: list[str] = []
    done = 0
    for match in _WORD.finditer(text):
        if match.start() < done or match["string"]:
            continue
        pieces.append(text[done : match.start()])
        done = match.end()
        if match["shared"]:
            pieces.append(_same_lines(match[0], "static"))
        elif match["noinline"]:
            pieces.append("__attribute__((noinline))")
        else:
            done, instructions = _assembly(text, match.end())
            if not all(_HINT.fullmatch(one) for one in instructions):
                raise NotOnHostError(
                    _refusal(file, _line_at(text, match.start(), line), instructions)
                )
            pieces.append(_same_lines(text[match.start() : done], "(void)0"))
    return "".join(pieces) + text[done:]


def _dynamic_shared(match: re.Match[str]) -> str:
    kind = re.sub(_ATTRIBUTE, " ", f"{match['before']} {match['after']}")
    kind = " ".join(_MARKER.sub("", kind).split())
    pointer = f"{kind}* const {match['name']} __attribute__((unused)) = "
    cast = f"reinterpret_cast<{kind}*>(::cuda_on_host::dynamic_shared);"
    return _same_lines(match[0], pointer + cast)


def _same_lines(removed: str, replacement: str) -> str:
    """Keep the line breaks and markers of what is replaced, so that later lines stay right."""
    kept = ["\n" if line.endswith("\n") else "" for line in removed.splitlines(keepends=True)]
    lines = removed.splitlines(keepends=True)
    return replacement + "".join(
        line if _MARKER.match(line) else end for line, end in zip(lines, kept, strict=True)
    )


def _assembly(text: str, position: int) -> tuple[int, list[str]]:
    """Return where the statement that `asm` begins ends, and its instructions."""
    opening = _QUALIFIER.match(text, position)
    if opening is None:
        return position, ["asm"]
    depth, in_template, template = 1, True, ""
    for piece in _PIECE.finditer(text, opening.end()):
        if piece["marker"]:
            continue
        if piece["string"]:
            template += _unquoted(piece[0]) if in_template else ""
        elif piece[0] == ":":
            in_template = False
        else:
            depth += 1 if piece[0] == "(" else -1
        if depth == 0:
            return piece.end(), [one.strip() for one in re.split(r"[;\n]", template) if one.strip()]
    return len(text), ["asm"]


def _unquoted(literal: str) -> str:
    if literal.startswith("R"):
        return literal[literal.index("(") + 1 : literal.rindex(")")]
    return re.sub(r"\\[nt]", "\n", literal[1:-1])


def _line_at(text: str, position: int, line: int) -> int:
    start = 0
    for marker in _MARKER.finditer(text, 0, position):
        start, line = marker.end(), int(marker[1])
    return line + text.count("\n", start, position)


def _refusal(file: str, line: int, instructions: list[str]) -> str:
    shown = next(one for one in instructions if not _HINT.fullmatch(one))
    name = UNIT_NAME if file.endswith(UNIT_NAME) else file
    return f"{name}({line}): error: inline PTX `{shown}`\n  {REMEDY}"
