"""The blanks of a draft: where they are, and a refusal to go on while any is left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tuner.draft.drafting import UNWRITTEN
from tuner.draft.marks import BLANK, MARK
from tuner.model.errors import InputError

_BLANK = re.compile(rf"\b{BLANK}\b")


def blanks(text: str) -> list[tuple[int, str]]:
    """List the blanks that are left in a drafted file: the line, and what is needed there."""
    found = []
    for line, row in enumerate(text.splitlines(), start=1):
        code, _, comment = row.partition(" #")
        if _BLANK.search(code) and not code.lstrip().startswith("#"):
            what = f"#{comment}".partition(MARK)[2].strip()
            found.append((line, what or f"a value for {BLANK}"))
    return found


def reference_blanks(text: str) -> list[tuple[int, str]]:
    """List the line of a drafted reference whose body is not written yet."""
    rows = enumerate(text.splitlines(), start=1)
    return [(n, "the body of reference(), in float64") for n, row in rows if UNWRITTEN in row]


def require_filled(*files: Path) -> None:
    """Raise `InputError` with all blanks that are left in drafts; other files pass unread."""
    left = [blank for path in files for blank in _left(path)]
    if not left:
        return
    path, line, what = left[0]
    if len(left) == 1:
        raise InputError(f"still to fill in: {what}", path=path, line=line)
    listed = "\n  ".join(f"{path}:{line}: {what}" for path, line, what in left)
    raise InputError(f"{len(left)} blanks are left to fill in", path=path, remedy=listed)


def _left(path: Path) -> Iterator[tuple[Path, int, str]]:
    # What cannot be read or decoded is told by whoever reads it next, and better.
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    for line, what in reference_blanks(text) if path.suffix == ".py" else blanks(text):
        yield path, line, what
