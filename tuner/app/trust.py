"""Whose Python a session may run: its user's own, or what the user said yes to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from platformdirs import user_state_path

from tuner.model.errors import SessionError
from tuner.process.files import atomic_write
from tuner.session.records import file_sha

# Is told what would run, and says whether it may.
MayRun = Callable[[str], bool]


def nobody_asked(question: str) -> bool:
    """Say no: nobody is there to be asked."""
    return False


def trust(reference: Path) -> None:
    """Remember that this user has run a reference, or wants to, as it is now.

    By its text alone, so that a copy of a project needs no second word, and a changed one does.
    """
    place = _place(reference)
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(place, f"{reference}\n")
    except OSError:  # no home, or one that cannot be written: it is asked again, no more
        return


def require_trusted(reference: Path, session: Path, may_run: MayRun) -> None:
    """Raise `SessionError` unless this user has run a reference before, or says yes now."""
    with suppress(OSError):  # a state folder that cannot be read
        if _place(reference).exists():
            return
    if not may_run(f"{session} runs the Python in {reference}, with your rights. Go on?"):
        raise SessionError(
            f"its reference is Python, which would run with your rights: {reference}",
            path=session,
            remedy="read it first; then --trust, of `tune verify` and `tune --resume`, runs it",
        )
    trust(reference)


def _place(reference: Path) -> Path:
    return user_state_path("kernel-tune") / "trusted-references" / file_sha(reference)
