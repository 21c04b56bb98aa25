"""One session's database: its lock, its connection, and one commit for every record."""

from __future__ import annotations

import hashlib
import os
import socket
import sqlite3
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path

from filelock import FileLock, Timeout

from tuner.model.errors import SessionError
from tuner.process.child import held_back
from tuner.session.records import Manifest, SessionHeader, SessionRecord, from_row, to_row

DATABASE = "session.db"
LOCK = "session.lock"
# Raise it with every change of a table or of a record.
SCHEMA_VERSION = 6
# "tune" in ASCII: tells a session from any other SQLite file
APPLICATION_ID = 0x74756E65
# `manifest`, `environment` and `content` are JSON.
SCHEMA = """
CREATE TABLE session (
    id INTEGER NOT NULL, manifest VARCHAR NOT NULL, environment VARCHAR NOT NULL,
    state VARCHAR NOT NULL, seconds FLOAT NOT NULL, writer VARCHAR NOT NULL, PRIMARY KEY (id)
);
CREATE TABLE records (
    id INTEGER NOT NULL, kind VARCHAR NOT NULL, content VARCHAR NOT NULL, PRIMARY KEY (id)
);
"""


# What a run puts into its folder: files, and folders of files.
_FILES = (DATABASE, *(f"{DATABASE}-{end}" for end in ("wal", "shm", "journal")), LOCK)
_OURS = (*_FILES, "optuna.journal", "tuned", "rounds")
_WRITTEN_OVER = ("report.html", "tuned", "rounds")
# Larger than any record of ours, in bytes.
MOST_RECORD_BYTES = 64 << 20
# A session of 100,000 trials is read in some seconds.
READING_S = 120.0
_STEPS = 100_000


class SessionStore:
    """Append records to a session's database and read them back; close it when done."""

    def __init__(self, path: Path, raw: sqlite3.Connection, lock: FileLock | None) -> None:
        self.path, self._raw, self._lock = path, raw, lock
        self._closed = False

    @classmethod
    def create(
        cls, directory: Path, manifest: Manifest, environment: Mapping[str, str]
    ) -> SessionStore:
        """Make the folder and the database; raise `SessionError` where there is one already."""
        path = directory / DATABASE
        if directory.is_file():
            raise SessionError(
                "cannot write here: a session is a folder, this is a file",
                path=directory,
                remedy="name a folder that can be written with `--session`",
            )
        with _creating(directory):
            directory.mkdir(parents=True, exist_ok=True)
        _require_free(directory)
        with ExitStack() as undo:
            lock = _lock_folder(directory)
            undo.callback(lock.release)
            if path.exists():
                raise SessionError(
                    "the folder already holds a session",
                    path=directory,
                    remedy=f"continue it with `--resume {directory}`, "
                    "or name another folder with `--session`",
                )
            with _creating(directory):
                # Under another name first: a session that is there is complete, however early the
                # kill.
                unfinished = path.with_suffix(".new")
                unfinished.unlink(missing_ok=True)
                header = SessionHeader(manifest, environment, "running", 0.0).to_row()
                with closing(_connect(unfinished, "rwc")) as raw, raw:
                    raw.execute(f"PRAGMA application_id={APPLICATION_ID}")
                    raw.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
                    raw.executescript(SCHEMA)
                    row = (*header, _this_process())
                    raw.execute("INSERT INTO session VALUES (1, ?, ?, ?, ?, ?)", row)
                unfinished.replace(path)
            store = cls(path, _open_database(path, read_only=False), lock)
            undo.pop_all()
        return store

    @classmethod
    def open(cls, directory: Path, *, read_only: bool) -> SessionStore:
        """Open the database; raise `SessionError` where it is missing, damaged, newer or in use."""
        path = directory / DATABASE
        problem = ""
        try:
            if not directory.exists():
                problem = "no such session"
            elif not directory.is_dir():
                problem = "a session is a folder, this is a file"
            elif not path.is_file():
                problem = f"the folder holds no session: {DATABASE} is missing"
        except OSError as error:
            problem = f"the folder cannot be read: {error.strerror}"
        if problem:
            remedy = "name the folder that a run printed as its session"
            raise SessionError(problem, path=directory, remedy=remedy)
        if read_only:
            return cls(path, _open_database(path, read_only=True), None)
        with ExitStack() as undo:
            lock = _lock_folder(directory)
            undo.callback(lock.release)
            store = cls(path, _open_database(path, read_only=False), lock)
            undo.callback(store.close)
            store.update(writer=_this_process())
            undo.pop_all()
        return store

    def header(self) -> SessionHeader:
        with self._reading():
            query = "SELECT manifest, environment, state, seconds FROM session LIMIT 2"
            rows = self._raw.execute(query).fetchall()
            if len(rows) != 1:
                raise ValueError("it has no header, or several")
            return SessionHeader.from_row(*rows[0])

    def records(self) -> Iterator[SessionRecord]:
        with self._reading():
            for row in self._raw.execute("SELECT kind, content FROM records ORDER BY id"):
                yield from_row(*row)

    @property
    def identity(self) -> str:
        """A hash of what the session was asked to do, when, and where: of all its copies too."""
        texts = "\n".join(map(str, self.columns("manifest", "environment")))
        return hashlib.sha256(texts.encode()).hexdigest()[:16]

    @property
    def is_used(self) -> bool:
        with self._reading():
            query = "SELECT 1 FROM records WHERE kind IN ('trial', 'baseline') LIMIT 1"
            return self._raw.execute(query).fetchone() is not None

    def columns(self, *names: str) -> tuple[object, ...]:
        """Read columns of the header as they are written."""
        with self._reading():
            query = f"SELECT {', '.join(names)} FROM session"  # noqa: S608 - names of ours
            return tuple(self._raw.execute(query).fetchone())

    def rows(self, after: int, limit: int) -> list[tuple[int, str, str]]:
        """Read the number, kind and JSON of records as they are written, from the next one on."""
        with self._reading():
            query = "SELECT id, kind, content FROM records WHERE id > ? ORDER BY id LIMIT ?"
            return self._raw.execute(query, (after, limit)).fetchall()

    def restore(self, rows: Iterable[tuple[int, str, str]]) -> int:
        """Write all records of an empty session as `rows` gave them; return how many."""
        insert = "INSERT INTO records (id, kind, content) VALUES (?, ?, ?)"
        count = 0
        with self._report_errors(), self._raw:
            for count, row in enumerate(rows, start=1):
                if row[0] != count:
                    raise self.damage_error(f"record {count} is missing")
                self._raw.execute(insert, row)
        return count

    def append(self, record: SessionRecord) -> None:
        self._write("INSERT INTO records (kind, content) VALUES (:kind, :content)", to_row(record))

    def update(self, **columns: str | float) -> None:
        changes = ", ".join(f"{name} = :{name}" for name in columns)
        self._write(f"UPDATE session SET {changes}", columns)  # noqa: S608 - names of ours

    def close(self) -> None:
        """Leave one plain file behind, close it and give up the lock; twice is allowed."""
        if self._closed:
            return
        self._closed = True
        if self._lock is not None:
            # Without its WAL the file can be copied alone and read on a read-only disk. While
            # someone reads it this fails, and the WAL stays.
            with suppress(sqlite3.OperationalError):
                self._raw.execute("PRAGMA busy_timeout=0")
                self._raw.execute("PRAGMA journal_mode=DELETE")
        self._raw.close()
        if self._lock is not None:
            self._lock.release()

    def discard(self) -> None:
        """Close the database and delete all that this class has written."""
        self.close()
        for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", LOCK):
            (self.path.parent / name).unlink(missing_ok=True)

    def damage_error(self, found: str) -> SessionError:
        return _damage_error(self.path, found)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with _limit_query(self._raw), self._report_errors():
                yield
        # pydantic's, too, and a record that is too long
        except (ValueError, sqlite3.DataError) as error:
            raise _damage_error(self.path, str(error).splitlines()[0]) from error

    def _write(self, statement: str, values: Mapping[str, str | float]) -> None:
        if self._lock is None:
            raise SessionError("the session was opened for reading only", path=self.path)
        # What an interrupt breaks into would be on disk, and unknown to this process.
        with held_back(), self._report_errors(), self._raw:
            self._raw.execute(statement, values)

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DataError:
            raise
        except sqlite3.Error as error:
            raise SessionError(
                f"the database failed: {error}",
                path=self.path,
                remedy="what was recorded before is kept: once the cause is gone, "
                f"continue with `--resume {self.path.parent}`",
            ) from error


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # Threads of one run take turns in using it (tuner/tuning/device_queues.py).
    address = f"{path.absolute().as_uri()}?mode={mode}"
    raw = sqlite3.connect(address, uri=True, check_same_thread=False)
    # Whoever wrote the file may have meant harm (https://sqlite.org/security.html).
    raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_RECORD_BYTES)
    if sys.version_info >= (3, 12):
        raw.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
        raw.execute(f"PRAGMA {pragma}")
    # What is no UTF-8 is a `ValueError`, as what is no JSON.
    raw.text_factory = bytes.decode
    return raw


def _open_database(path: Path, *, read_only: bool) -> sqlite3.Connection:
    _require_plain(path.parent)
    with ExitStack() as undo:
        try:
            raw = _connect(path, "ro" if read_only else "rw")
            undo.callback(raw.close)
            with _limit_query(raw):
                _check(path, raw)
            if not read_only:
                raw.execute("PRAGMA journal_mode=WAL")
                # Enough for a killed process; a power cut may cost the last trials, no more.
                raw.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.OperationalError as error:
            raise SessionError(
                f"cannot open the database: {error}",
                path=path,
                remedy="see that the file can be read, and that the disk is not full",
            ) from error
        except sqlite3.DatabaseError as error:
            raise _damage_error(path, str(error)) from error
        undo.pop_all()
    return raw


def _check(path: Path, raw: sqlite3.Connection) -> None:
    (application,) = raw.execute("PRAGMA application_id").fetchone()
    (version,) = raw.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise SessionError(
            "not a session of tune, though an SQLite database",
            path=path,
            remedy="name the folder that the run printed",
        )
    if version != SCHEMA_VERSION:
        age = "an older"
        remedy = "open it with the version that wrote it, or start a new session in another folder"
        if version > SCHEMA_VERSION:
            age = "a newer"
            remedy = "upgrade with `pip install --upgrade kernel-tune`, or start a new session"
        raise SessionError(
            f"written by {age} version of tune: schema {version}, "
            f"this version reads {SCHEMA_VERSION}",
            path=path,
            remedy=remedy,
        )
    # Before anything is read: a view or a generated column can hold a query without an end.
    listed = raw.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(len(_schema()) + 1)
    for kind, name, text in listed:
        if (kind, name, "".join(str(text).split())) not in _schema():
            raise _damage_error(path, f"it has a {kind} {name!r} that tune does not make")
    if len(listed) != len(_schema()):
        raise _damage_error(path, "it lacks a table")
    (verdict,) = raw.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _damage_error(path, verdict.splitlines()[-1])


@cache
def _schema() -> frozenset[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as raw:
        raw.executescript(SCHEMA)
        rows = raw.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    return frozenset((kind, name, "".join(text.split())) for kind, name, text in rows)


def _require_plain(directory: Path) -> None:
    """Refuse a folder that would have us write elsewhere, or wait for what is no file."""
    for top in (directory / name for name in _OURS):
        below = (Path(at, name) for at, *found in os.walk(top) for name in chain(*found))
        for path in chain([top], below):
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    what = "a link" if stat.S_ISLNK(mode) else "no regular file"
                    raise SessionError(
                        f"is {what}, which no run puts there",
                        path=path,
                        remedy="look where it leads; without it the session can be opened",
                    )


@contextmanager
def _limit_query(raw: sqlite3.Connection) -> Iterator[None]:
    """Let a query take some time, and no more."""
    ends_s = time.monotonic() + READING_S
    raw.set_progress_handler(lambda: time.monotonic() > ends_s, _STEPS)
    try:
        yield
    finally:
        raw.set_progress_handler(None, 0)


def _damage_error(path: Path, found: str) -> SessionError:
    return SessionError(
        f"the database is damaged: {found}",
        path=path,
        remedy="restore it from a copy, or start a new session in another folder; "
        "`sqlite3 session.db .recover` may save the trials",
    )


def _require_free(directory: Path) -> None:
    present = [name for name in _WRITTEN_OVER if (directory / name).exists()]
    # A session whose database was deleted, to begin anew, still has its lock.
    if present and not any((directory / name).exists() for name in (DATABASE, LOCK)):
        raise SessionError(
            f"the folder is no session's, and a run would write over its {present[0]}",
            path=directory,
            remedy="name another folder with `--session`",
        )


def _lock_folder(directory: Path) -> FileLock:
    # A lock of the kernel on an open file: it ends with its process, even a killed one.
    _require_plain(directory)
    lock = FileLock(directory / LOCK, thread_local=False)
    try:
        with _creating(directory):
            lock.acquire(blocking=False)
    except Timeout as error:
        writer = "another process"
        with (
            suppress(SessionError),
            closing(_open_database(directory / DATABASE, read_only=True)) as raw,
        ):
            (writer,) = raw.execute("SELECT writer FROM session").fetchone()
        raise SessionError(
            f"in use: {writer} is writing this session",
            path=directory,
            remedy="wait for it or end it: the lock ends with the process, and deleting "
            f"{LOCK} would not help; `tune report` reads a session that is in use",
        ) from error
    return lock


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def _creating(directory: Path) -> Iterator[None]:
    try:
        yield
    except Timeout:  # an OSError too, but of the lock's own
        raise
    except (OSError, sqlite3.Error) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise SessionError(
            f"cannot write here: {cause}",
            path=directory,
            remedy="name a folder that can be written with `--session`",
        ) from error
