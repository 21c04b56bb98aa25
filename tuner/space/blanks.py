"""What a draft leaves to a person: how it is marked, and whether all of it is filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tuner.model.errors import InputError
from tuner.process.files import read_text

# How a draft marks what it leaves to a person.
BLANK = "FILL_IN"
MARK = "# FILL IN:"
# How the body of a reference begins that nobody has written yet.
UNWRITTEN = 'raise ValueError("fill in reference()'
_UNWRITTEN_CODE = MARK.replace("#", "//")
_BLANK = re.compile(rf"\b{BLANK}\b")


@dataclass(frozen=True, slots=True)
class Blank:
    """One thing that a person has to fill in."""

    file: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def blanks(text: str) -> list[tuple[int, str]]:
    """List the blanks that are left in a drafted file: the line, and what is needed there."""
    left = []
    for line, row in enumerate(text.splitlines(), 1):
        code, _, comment = row.partition(" #")
        if _BLANK.search(code) and not code.lstrip().startswith("#"):
            what = f"#{comment}".partition(MARK)[2].strip()
            left.append((line, what or f"a value for {BLANK}"))
    return left


def blanks_in(path: Path) -> list[Blank]:
    """List the blanks of one file, by its name a reference or another; none of one not there."""
    # What cannot be read or decoded is told by whoever reads it next, and better.
    try:
        text = read_text(path)
    except OSError:
        return []
    if path.suffix == ".py":
        what = "the body of reference(), in float64"
        return [
            Blank(path, line, what)
            for line, row in enumerate(text.splitlines(), 1)
            if UNWRITTEN in row
        ]
    if path.suffix == ".cu":
        rows = (
            (line, row.partition(_UNWRITTEN_CODE)) for line, row in enumerate(text.splitlines(), 1)
        )
        return [Blank(path, line, what.strip()) for line, (_, mark, what) in rows if mark]
    return [Blank(path, line, what) for line, what in blanks(text)]


def require_filled(*files: Path) -> None:
    """Raise `InputError` with all blanks that are left in drafts; other files pass unread."""
    left = [blank for path in files for blank in blanks_in(path)]
    if not left:
        return
    if len(left) == 1:
        raise InputError(f"still to fill in: {left[0].what}", path=left[0].file, line=left[0].line)
    listed = "\n  ".join(map(str, left))
    raise InputError(f"{len(left)} blanks are left to fill in", path=left[0].file, remedy=listed)
