"""Folders for the files of one compilation, locked while it lasts: none is left for good."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "tuner-host-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder and remove it; should this process be killed, `remove_left_behind` does."""
    lock, folder = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_behind() -> None:
    """Remove the folders of processes of this user that were killed: those that nobody locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, in use, or gone meanwhile
            lock = _opened(folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _locked_folder() -> tuple[int, Path]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):
            lock = _opened(folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Between the two it may have been taken for one that was left behind.
            if folder.exists():
                return lock, folder
            os.close(lock)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
