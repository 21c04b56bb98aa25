"""The notes: what is known of GPUs, in Markdown that ships with the program."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from tuner.errors import InputError

FOLDER = Path(__file__).parent / "notes"


def names() -> tuple[str, ...]:
    """List the notes by name, in order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.md")))


def note(name: str) -> str:
    """Return one note; raise `InputError` for an unknown one."""
    if name not in names():
        near = get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"there is no note {name[:80]!r}", remedy=f"{hint}notes: {', '.join(names())}"
        )
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def contents() -> str:
    """List the notes with their titles."""
    return "\n".join(f"- {name}: {title(name)}" for name in names())


def title(name: str) -> str:
    """Return the heading of a note."""
    return note(name).partition("\n")[0].removeprefix("# ")
