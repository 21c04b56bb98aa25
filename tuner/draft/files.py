"""The files of a draft: written where they belong, never over others unasked, with their blanks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.model.errors import InputError, SpaceError

# How a draft marks what it leaves to a person.
BLANK = "FILL_IN"
MARK = "# FILL IN:"
# How the body of a reference begins that nobody has written yet.
UNWRITTEN = 'raise ValueError("fill in reference()'
_BLANK = re.compile(rf"\b{BLANK}\b")


@dataclass(frozen=True, slots=True)
class Blank:
    """One thing that a person has to fill in."""

    file: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Drafted:
    """What became of a draft: the files written, those kept as they were, and what is left.

    `space` is the search space among them, None where a person has to write it; `parameters` are
    what it proposes to tune. Of a source whose kernel was extracted, `left_out` says what the unit
    does not hold and why, and `notes` what else there is to know.
    """

    kernel: str
    space: Path | None
    written: tuple[Path, ...]
    kept: tuple[Path, ...] = ()
    parameters: tuple[str, ...] = ()
    blanks: tuple[Blank, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def require_filled(self, check: str) -> None:
        """Raise `InputError` that lists every blank; `check` is the command that comes next."""
        if not self.blanks:
            return
        listed = "".join(f"{blank}\n  " for blank in self.blanks)
        count = "1 blank is" if len(self.blanks) == 1 else f"{len(self.blanks)} blanks are"
        raise InputError(
            f"{count} left in the draft for {self.kernel}, where the source does not say enough",
            remedy=f"{listed}fill in what they ask for, then: {check}",
        )


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


def blanks_in(path: Path) -> list[Blank]:
    """List the blanks of one file, by its name a reference or another; none of one not there."""
    # What cannot be read or decoded is told by whoever reads it next, and better.
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    found = reference_blanks(text) if path.suffix == ".py" else blanks(text)
    return [Blank(path, line, what) for line, what in found]


def require_filled(*files: Path) -> None:
    """Raise `InputError` with all blanks that are left in drafts; other files pass unread."""
    left = [blank for path in files for blank in blanks_in(path)]
    if not left:
        return
    first = left[0]
    if len(left) == 1:
        raise InputError(f"still to fill in: {first.what}", path=first.file, line=first.line)
    listed = "\n  ".join(map(str, left))
    raise InputError(f"{len(left)} blanks are left to fill in", path=first.file, remedy=listed)


def write_new(
    files: Mapping[Path, str], *, force: bool, more: Mapping[Path, str] | None = None
) -> None:
    """Write files that must not be there yet unless `force`, then `more`, or nothing at all."""
    existing = [path for path in files if path.exists()]
    if existing and not force:
        raise SpaceError(
            "exists already; nothing was written",
            path=existing[0],
            remedy="with `tune init`, --force overwrites it and --out DIR writes elsewhere",
        )
    for path, text in {**files, **(more or {})}.items():
        write(path, text)


def write(path: Path, text: str) -> None:
    """Write one file with its folder; raise `InputError` where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot be written: {reason.lower()}",
            path=path,
            remedy="`tune init --out DIR` writes search space and template elsewhere; the "
            "reference belongs beside the kernel",
        ) from error
