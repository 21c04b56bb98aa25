"""A preprocessed kernel made into C++: shared memory as statics, hints in PTX dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.compiler.host_lexing import MARKER, TOKEN, line_at, same_lines, unquoted
from tuner.compiler.host_shared import static_shared, without_dynamic
from tuner.compiler.includes import UNIT_NAME

LAUNCH_UNIT = "launch"
REMEDY = (
    "the `host` device can't run this: provide a substitute under `#ifdef __CUDA_ON_HOST__`, or "
    "verify on a GPU"
)

_ASSEMBLY = frozenset({"asm", "__asm__", "__asm"})
_QUALIFIER = re.compile(r"\s*(?:\b(?:volatile|__volatile__|inline|goto)\b\s*)*\(")
# Without an effect that a result could show: when the next grid may start, and what to fetch early.
_HINT = re.compile(r"griddepcontrol\.\w+|prefetchu?\.[\w.:]+\s*\[[^\]]*\]")


class NotOnHostError(Exception):
    """Carry the compile error for something that only a GPU can run."""


def to_host(preprocessed: str) -> str:
    """Rewrite the user's part of a preprocessed unit, every line staying where it is.

    `asm` of nothing but `griddepcontrol` and `prefetch` instructions is dropped; any other raises
    `NotOnHostError` with its line.
    """
    return "".join(_rewritten(text, file, line) for text, file, line in parts(preprocessed))


def parts(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield runs of own source with the file and line of their start; system headers have none.

    Consecutive markers of one file stay in one run: a statement may lie across them. Whether a
    file is a system header its first marker says: later ones also mark uses of its macros.
    """
    start, file, line = 0, "", 1
    own: dict[str, str] = {}
    for marker in MARKER.finditer(text):
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
    text = without_dynamic(text)
    pieces: list[str] = []
    done = 0
    for token in TOKEN.finditer(text):
        if token.start() < done or not token["word"]:
            continue
        end, replacement = _replacement(text, token, file, line)
        if end:
            pieces += [text[done : token.start()], replacement]
            done = end
    return "".join(pieces) + text[done:]


def _replacement(text: str, word: re.Match[str], file: str, line: int) -> tuple[int, str]:
    """Return where what replaces a word and what follows it ends, and the text; 0 keeps it."""
    start, end = word.span()
    if word[0] == "__shared__":
        return static_shared(text, start, end)
    if word[0] == "__noinline__":
        return end, "__attribute__((noinline))"
    if word[0] not in _ASSEMBLY:
        return 0, ""
    end, instructions = assembly(text, end)
    if not all(_HINT.fullmatch(one) for one in instructions):
        raise NotOnHostError(_refusal(file, line_at(text, start, line), instructions))
    return end, same_lines(text[start:end], "(void)0")


def assembly(text: str, position: int) -> tuple[int, list[str]]:
    """Return where the statement that `asm` begins ends, and its instructions."""
    opening = _QUALIFIER.match(text, position)
    if opening is None:
        return position, ["asm"]
    depth, in_template, template = 1, True, ""
    for token in TOKEN.finditer(text, opening.end()):
        if token["string"]:
            template += unquoted(token[0]) if in_template else ""
        elif token[0] == ":":
            in_template = False
        elif token[0] in "()":
            depth += 1 if token[0] == "(" else -1
        if depth == 0:
            instructions = re.split(r"[;\n]", template)
            return token.end(), [one.strip() for one in instructions if one.strip()]
    return len(text), ["asm"]


def _refusal(file: str, line: int, instructions: list[str]) -> str:
    shown = next(one for one in instructions if not _HINT.fullmatch(one))
    name = UNIT_NAME if file.endswith(UNIT_NAME) else file
    return f"{name}({line}): error: inline PTX `{shown}`\n  {REMEDY}"
