"""What the sessions that one engine's file or table is made from have to have in common."""

from __future__ import annotations

from pathlib import Path

from tuner.compiler.base import measured_with
from tuner.extensions.export.winners import Winners
from tuner.model.errors import SessionError
from tuner.session.session import Session


def require_one_gpu(winners: Winners, gpu: str, folder: Path) -> None:
    """Raise `SessionError` for a session of another GPU than those before, "" where none was."""
    if gpu not in ("", winners.device.name):
        message = f"was measured on {winners.device.name}, and others on {gpu}"
        raise SessionError(message, path=folder, remedy="export each GPU's sessions apart")


def require_triton(session: Session, triton: str, what: str) -> None:
    """Raise `SessionError` where a session says another Triton; `what` is "files are", say."""
    measured = measured_with(session.environment.get("compiler", ""), "triton")
    if measured is not None and measured.partition("+")[0] != triton:
        raise SessionError(
            f"was measured with Triton {measured}, and the {what} for {triton}",
            path=session.directory,
            remedy=f"--triton {measured} says what it is; for {triton} tune it anew",
        )
