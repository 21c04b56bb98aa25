"""What a stranger's source may not ask of g++: other files, and lines for the assembler."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.compiler.host_lexing import MARKER, STRING, line_at, unquoted
from tuner.compiler.host_source import assembly, parts
from tuner.compiler.includes import UNIT_NAME

# These attributes go to the assembler as they are, and the assembler can include files. Each
# pattern begins with a plain word, which is what makes it fast.
_NAMED = [
    re.compile(rf"(?P<name>{word})(?:__)?\s*\((?P<names>(?:\s*(?:{STRING})|[\s\w,()])*)")
    for word in [
        "section",
        "alias",
        "weakref",
        "ifunc",
        "symver",
        "target",
        "target_clones",
        "optimize",
        "patchable_function_entry",
    ]
]
_ONE_STRING = re.compile(STRING, re.DOTALL)
_PLAIN_NAME = re.compile(r"[\w.$@=,+-]*")
_ASSEMBLY = re.compile(r"asm(?:__)?\b")
# Without a quote no file can be named to the assembler.
_PLAIN_INSTRUCTION = re.compile(r"(?!\.inc)[\w.$@%(), +-]*")
_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+GCC[ \t]+(\w+)", re.M)
_PRAGMAS = frozenset(
    ("diagnostic", "unroll", "ivdep", "push_options", "pop_options", "optimize", "visibility")
) | {"poison", "system_header", "target", "novector"}


def refusal(preprocessed: str, folder: Path, allowed: Sequence[Path]) -> str | None:
    """Return the error for what `preprocessed` may not contain, else None.

    `folder` is where the unit lies, `allowed` the folders that it may include from. The text of
    system headers is looked at too, for a source can claim to be one.
    """
    found = _outside(preprocessed, folder, [path.resolve() for path in allowed])
    for check in (_bad_pragmas, _bad_names, _bad_assembly):
        if found is None:
            found = next(check(preprocessed), None)
    if found is None:
        return None
    position, problem = found
    file, line = _place(preprocessed, position)
    return f"{UNIT_NAME if file.endswith(UNIT_NAME) else file}({line}): error: {problem}"


def _outside(text: str, folder: Path, allowed: list[Path]) -> tuple[int, str] | None:
    known: set[str] = {UNIT_NAME}
    for marker in MARKER.finditer(text):
        name = marker[2]
        if name in known or name.startswith("<") or "1" not in marker[3].split():
            continue
        path = (folder / re.sub(r"\\(.)", r"\1", name)).resolve()
        if not any(path.is_relative_to(one) for one in allowed):
            # The marker stands where the directive stood.
            return marker.start(), f"#include of {name} outside the declared folders"
        known.add(name)
    return None


def _bad_pragmas(text: str) -> Iterator[tuple[int, str]]:
    for match in _PRAGMA.finditer(text):
        if match[1] not in _PRAGMAS:
            yield match.start(), f"`#pragma GCC {match[1]}` is not allowed"


def _bad_names(text: str) -> Iterator[tuple[int, str]]:
    for match in (match for pattern in _NAMED for match in pattern.finditer(text)):
        for literal in _ONE_STRING.finditer(match["names"]):
            if _is_word(text, match.start()) and not _PLAIN_NAME.fullmatch(unquoted(literal[0])):
                yield match.start(), f"a name in `{match['name']}` has other characters than a name"


def _bad_assembly(text: str) -> Iterator[tuple[int, str]]:
    """Look at the text of system headers; in the user's own, `to_host` refuses all but hints."""
    start = 0
    for part, file, _ in parts(text):
        for match in () if file else _ASSEMBLY.finditer(part):
            if not _is_word(part, match.start()):
                continue
            _, instructions = assembly(part, match.end())
            if not all(_PLAIN_INSTRUCTION.fullmatch(one) for one in instructions):
                yield start + match.start(), "`asm` that may name a file is not allowed"
        start += len(part)


def _is_word(text: str, position: int) -> bool:
    """Return whether a word begins here, leading underscores apart."""
    while position and text[position - 1] == "_":
        position -= 1
    return not text[position - 1 : position].isalnum()


def _place(text: str, position: int) -> tuple[str, int]:
    file = UNIT_NAME
    for marker in MARKER.finditer(text, 0, position):
        file = marker[2]
    return file, line_at(text, position, 1)
