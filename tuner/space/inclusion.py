"""`//% include "words.cuh"`: texts of a kernel's `include:` folders, put into its template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.model.errors import TemplateError
from tuner.space.yaml import read_text

MAX_BYTES = 1_000_000
_DIRECTIVE = re.compile(r"[ \t]*//%[ \t]*include\b(.*)")
_NAME = re.compile(r'[ \t]+"([^"]+)"\s*')


@dataclass(frozen=True, slots=True)
class Whole:
    """A template with all that it includes; `places[i]` is the file and line of line i + 1."""

    text: str
    path: Path
    places: tuple[tuple[Path, int], ...]

    def place(self, line: int) -> tuple[Path, int]:
        return self.places[min(max(line, 1), len(self.places)) - 1]


def put_together(text: str, path: Path, folders: Sequence[Path]) -> Whole:
    """Put the files that a template includes in the place of the directives, each once.

    `path` is the template's, `folders` are looked through in their order. A file may include
    others. Raises `TemplateError` with the line for a name that is none of a file inside a folder.
    """
    lines = [*_lines(text, path, folders, set())]
    return Whole("\n".join(line for line, _ in lines), path, tuple(place for _, place in lines))


def _lines(
    text: str, path: Path, folders: Sequence[Path], known: set[Path]
) -> Iterator[tuple[str, tuple[Path, int]]]:
    for number, line in enumerate(text.split("\n"), 1):
        directive = _DIRECTIVE.fullmatch(line.rstrip("\r"))
        if directive is None:
            yield line, (path, number)
            continue
        file = _found(directive[1], (path, number), folders)
        if file in known:
            continue
        known.add(file)
        inner = read_text(file, MAX_BYTES, TemplateError, "file to include")
        yield from _lines(inner.removesuffix("\n"), file, folders, known)


def _found(rest: str, place: tuple[Path, int], folders: Sequence[Path]) -> Path:
    path, line = place
    name = _NAME.fullmatch(rest)
    if name is None:
        remedy = 'write //% include "words.cuh"'
        raise TemplateError(
            "an `include` needs a name in quotes", path=path, line=line, remedy=remedy
        )
    for folder in (one.resolve() for one in folders):
        file = (folder / name[1]).resolve()
        if file.is_file() and file.is_relative_to(folder):
            return file
    looked = ", ".join(map(str, folders)) or "nowhere: the search space lists no folder"
    message, remedy = f"no file {name[1]!r} to include", "list its folder under `include`"
    raise TemplateError(f"{message}; looked in {looked}", path=path, line=line, remedy=remedy)
