"""Keep a campaign's finished jobs in one file of its folder, and lock the folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOTDIR
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError

from tuner.model.errors import InputError
from tuner.process.files import atomic_write, read_regular

LEDGER = "campaign.json"
LOCK = "campaign.lock"


class JobRecord(BaseModel):
    """What is known of a job that was started: with which files, and how it ended."""

    model_config = ConfigDict(extra="forbid")

    key: str
    seconds: float = 0.0
    exit_code: int | None = None


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    runs: int = 0
    wall_s: float = 0.0
    jobs: dict[str, JobRecord] = {}


class Ledger:
    """The record of a folder's jobs; every change is on disk when `save` returns."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        require_possible(folder)
        self.path = folder / LEDGER
        self._content = _Content() if fresh else self._read()
        self._content.runs += 1
        self._before_s, self._started_s = self._content.wall_s, time.monotonic()

    @property
    def jobs(self) -> dict[str, JobRecord]:
        return self._content.jobs

    @property
    def runs(self) -> int:
        """How often the campaign was started, this time included."""
        return self._content.runs

    @property
    def wall_s(self) -> float:
        """How long it has taken so far, without the pauses between its runs."""
        return round(self._before_s + time.monotonic() - self._started_s, 1)

    def save(self) -> None:
        """Write it all; raise `InputError` where the folder cannot be written."""
        self._content.wall_s = self.wall_s
        with writable(self.path.parent):
            atomic_write(self.path, self._content.model_dump_json(indent=1) + "\n")

    def _read(self) -> _Content:
        try:
            return _Content.model_validate_json(read_regular(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return _Content()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=self.path) from error
        except ValidationError as error:
            raise InputError(
                "is not what a campaign has written",
                path=self.path,
                remedy="restore it from a copy, or name another folder with --folder",
            ) from error


def require_possible(folder: Path) -> None:
    """Raise `InputError` where something else is in the place of a folder, without making it."""
    with writable(folder):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir():
            raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Make a folder and keep others out of it; raise `InputError` where that cannot be."""
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            raise InputError(
                "another campaign is running here",
                path=folder,
                remedy="wait for it or end it, or name another folder with --folder",
            ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn what the system refuses into an `InputError` that names the folder."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write here: {error.strerror or error}",
            path=folder,
            remedy="see that it can be written and the disk is not full, or name another folder "
            "with `folder` or --folder",
        ) from error
