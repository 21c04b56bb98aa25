"""One session's database: its lock, its connection, and one commit for every record."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import (
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    StaticPool,
    String,
    Table,
    create_engine,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from tuner.model.errors import SessionError
from tuner.process.signals import held_back
from tuner.session.records import SessionRecord, State, from_row, to_row

DATABASE = "session.db"
LOCK = "session.lock"
# Raise it with every change of a table or of a record.
SCHEMA_VERSION = 6
# "tune" in ASCII: tells a session from any other SQLite file
APPLICATION_ID = 0x74756E65

metadata = MetaData()
header = Table(
    "session",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("manifest", String, nullable=False),  # JSON, as the next one
    Column("environment", String, nullable=False),
    Column("state", String, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("writer", String, nullable=False),
)
records = Table(
    "records",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("content", String, nullable=False),  # JSON
)


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """What a session says of itself; `manifest` is its JSON text."""

    manifest: str
    environment: Mapping[str, str]
    state: State
    seconds: float


class SessionStore:
    """Append records to a session's database and read them back; close it when done."""

    def __init__(self, path: Path, raw: sqlite3.Connection, lock: FileLock | None) -> None:
        self.path, self._raw, self._lock = path, raw, lock
        self._engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
        self._connection = self._engine.connect()

    @classmethod
    def create(cls, directory: Path, manifest: str, environment: Mapping[str, str]) -> SessionStore:
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
        with ExitStack() as undo:
            lock = _locked(directory)
            undo.callback(lock.release)
            if path.exists():
                raise SessionError(
                    "the folder already holds a session",
                    path=directory,
                    remedy=f"continue it with `--resume {directory}`, "
                    "or name another folder with `--session`",
                )
            with _creating(directory):
                _build(path, manifest, environment)
            store = cls(path, _opened(path, read_only=False), lock)
            undo.pop_all()
        return store

    @classmethod
    def open(cls, directory: Path, *, read_only: bool) -> SessionStore:
        """Open the database; raise `SessionError` where it is missing, damaged, newer or in use."""
        path = directory / DATABASE
        remedy = "name the folder that a run printed as its session"
        if not directory.exists():
            raise SessionError("no such session", path=directory, remedy=remedy)
        if not directory.is_dir():
            message = "a session is a folder, this is a file"
            raise SessionError(message, path=directory, remedy=remedy)
        if not path.is_file():
            message = f"the folder holds no session: {DATABASE} is missing"
            raise SessionError(message, path=directory, remedy=remedy)
        if read_only:
            return cls(path, _opened(path, read_only=True), None)
        with ExitStack() as undo:
            lock = _locked(directory)
            undo.callback(lock.release)
            store = cls(path, _opened(path, read_only=False), lock)
            undo.callback(store.close)
            store.update(writer=_this_process())
            undo.pop_all()
        return store

    def header(self) -> SessionHeader:
        with self._reading() as connection:
            row = connection.execute(select(header)).one()
            return SessionHeader(row.manifest, json.loads(row.environment), row.state, row.seconds)

    def records(self) -> Iterator[SessionRecord]:
        """Read all records in the order in which they were appended."""
        query = select(records.c.kind, records.c.content).order_by(records.c.id)
        with self._reading() as connection:
            for kind, content in connection.execution_options(yield_per=500).execute(query):
                yield from_row(kind, content)

    def append(self, record: SessionRecord) -> None:
        with self._writing() as connection:
            connection.execute(insert(records), to_row(record))

    def update(self, **columns: str | float) -> None:
        with self._writing() as connection:
            connection.execute(update(header).values(columns))

    def close(self) -> None:
        """Leave one plain file behind, close it and give up the lock; twice is allowed."""
        if self._connection.closed:
            return
        self._connection.close()
        if self._lock is not None:
            # Without its WAL the file can be copied alone and read on a read-only disk. While
            # someone reads it this fails, and the WAL stays.
            with suppress(sqlite3.OperationalError):
                self._raw.execute("PRAGMA busy_timeout=0")
                self._raw.execute("PRAGMA journal_mode=DELETE")
        self._engine.dispose()
        self._raw.close()
        if self._lock is not None:
            self._lock.release()

    def discard(self) -> None:
        """Close the database and delete all that this class has written."""
        self.close()
        for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", LOCK):
            (self.path.parent / name).unlink(missing_ok=True)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with _reported(self.path), self._connection.begin():
                yield self._connection
        except ValueError as error:  # pydantic's and json's, too
            raise _damaged(self.path, str(error).splitlines()[0]) from error

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self._lock is None:
            raise SessionError("the session was opened for reading only", path=self.path)
        # SQLAlchemy closes the connection that an interrupt breaks into, and the run could not
        # say any more that it was interrupted.
        with held_back(), _reported(self.path), self._connection.begin():
            yield self._connection


def _build(path: Path, manifest: str, environment: Mapping[str, str]) -> None:
    # Under another name first: a session that is there is complete, however early the kill.
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    row = {
        "manifest": manifest,
        "environment": json.dumps(dict(environment)),
        "state": "running",
        "seconds": 0.0,
        "writer": _this_process(),
    }
    with closing(_connect(unfinished, "rwc")) as raw:
        raw.execute(f"PRAGMA application_id={APPLICATION_ID}")
        raw.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
        with engine.begin() as connection:
            metadata.create_all(connection)
            connection.execute(insert(header), row)
        engine.dispose()
    unfinished.replace(path)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)


def _opened(path: Path, *, read_only: bool) -> sqlite3.Connection:
    with ExitStack() as undo:
        try:
            raw = _connect(path, "ro" if read_only else "rw")
            undo.callback(raw.close)
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
            raise _damaged(path, str(error)) from error
        undo.pop_all()
    return raw


def _check(path: Path, raw: sqlite3.Connection) -> None:
    (application,) = raw.execute("PRAGMA application_id").fetchone()
    (version,) = raw.execute("PRAGMA user_version").fetchone()
    (verdict,) = raw.execute("PRAGMA quick_check(1)").fetchone()
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
    if verdict != "ok":
        raise _damaged(path, verdict)


def _damaged(path: Path, found: str) -> SessionError:
    return SessionError(
        f"the database is damaged: {found}",
        path=path,
        remedy="restore it from a copy, or start a new session in another folder; "
        "`sqlite3 session.db .recover` may save the trials",
    )


def _locked(directory: Path) -> FileLock:
    # A lock of the kernel on an open file: it ends with its process, even a killed one.
    lock = FileLock(directory / LOCK, thread_local=False)
    try:
        with _creating(directory):
            lock.acquire(blocking=False)
    except Timeout as error:
        writer = "another process"
        with suppress(sqlite3.DatabaseError), closing(_connect(directory / DATABASE, "ro")) as raw:
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
    except (OSError, sqlite3.Error, DBAPIError) as error:
        cause = error.strerror if isinstance(error, OSError) else getattr(error, "orig", error)
        raise SessionError(
            f"cannot write here: {cause}",
            path=directory,
            remedy="name a folder that can be written with `--session`",
        ) from error


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise SessionError(
            f"the database failed: {error.orig}",
            path=path,
            remedy="what was recorded before is kept: once the cause is gone, "
            f"continue with `--resume {path.parent}`",
        ) from error
