"""What of a session may run: its user's own reference and evaluator, or what got a yes."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from platformdirs import user_state_path

from tuner.model.errors import SessionError
from tuner.process.files import atomic_write
from tuner.session.records import file_sha

# Is told what would run, and says whether it may.
MayRun = Callable[[str], bool]


def say_no(question: str) -> bool:
    """Say no: nobody is there to be asked."""
    return False


def trust(reference: Path) -> None:
    """Remember that this user has run a reference, or wants to, as it is now.

    By its text alone, so that a copy of a project needs no second word, and a changed one does.
    """
    _remember(_place(reference), str(reference))


def trust_command(command: str) -> None:
    """Remember that this user has run an evaluator, with the files that its words name now."""
    _remember(_place_of_command(command), command)


def require_trusted(reference: Path, session: Path, may_run: MayRun) -> None:
    """Raise `SessionError` unless this user has run a reference before, or says yes now."""
    if _is_known(_place(reference)):
        return
    if not may_run(f"{session} runs the Python in {reference}, with your rights. Go on?"):
        raise SessionError(
            f"its reference is Python, which would run with your rights: {reference}",
            path=session,
            remedy="read it first; then --trust, of `tune verify` and `tune --resume`, runs it",
        )
    trust(reference)


def require_trusted_command(command: str, session: Path, may_run: MayRun) -> None:
    """Raise `SessionError` unless this user has run an evaluator before, or says yes now."""
    if _is_known(_place_of_command(command)):
        return
    if not may_run(f"{session} runs the program {command!r}, with your rights. Go on?"):
        raise SessionError(
            f"its device is a program, which would run with your rights: {command}",
            path=session,
            remedy="read it first; then --trust, of `tune --resume`, runs it",
        )
    trust_command(command)


def _remember(place: Path, text: str) -> None:
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(place, f"{text}\n")
    except OSError:  # no home, or one that cannot be written: it is asked again, no more
        return


def _is_known(place: Path) -> bool:
    with suppress(OSError):  # a state folder that cannot be read
        return place.exists()
    return False


def _place(reference: Path) -> Path:
    return user_state_path("kernel-tune") / "trusted-references" / file_sha(reference)


def _place_of_command(command: str) -> Path:
    digest = hashlib.sha256(command.encode())
    with suppress(ValueError):  # that it is no command, the device will say
        for word in shlex.split(command):
            path = Path(shutil.which(word) or word)
            digest.update(f"\0{file_sha(path)}".encode() if path.is_file() else b"\0")
    return user_state_path("kernel-tune") / "trusted-evaluators" / digest.hexdigest()
