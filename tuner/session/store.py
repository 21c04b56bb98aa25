"""One session's database: its lock, its connection, and one commit for every record."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import (
    Column,
    Connection,
    DefaultClause,
    StaticPool,
    create_engine,
    delete,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateColumn

from tuner.model.errors import SessionError
from tuner.process.signals import held_back
from tuner.session.records import Row
from tuner.session.schema import APPLICATION_ID, SCHEMA_VERSION, metadata

DATABASE = "session.db"
LOCK = "session.lock"


class Store:
    """Append rows to a session's tables and read them back; close it when done."""

    def __init__(self, path: Path, raw: sqlite3.Connection, lock: FileLock | None) -> None:
        self.path = path
        self._raw = raw
        self._lock = lock
        self._engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
        self._connection = self._engine.connect()

    @classmethod
    def create(cls, directory: Path, session: Row, environment: Mapping[str, str]) -> Store:
        """Make the folder and the database; raise `SessionError` where there is one already."""
        path = directory / DATABASE
        if directory.is_file():
            raise SessionError(
                "cannot write here: a session is a folder, this is a file",
                path=directory,
                remedy="name a folder that can be written with `--session`",
            )
        with _place(directory):
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
            with _place(directory):
                _build(path, {**session, "writer": _this_process()}, environment)
            store = cls(path, _opened(path, read_only=False), lock)
            undo.pop_all()
        return store

    @classmethod
    def open(cls, directory: Path, *, read_only: bool) -> Store:
        """Open the database; raise `SessionError` where it is missing, damaged, newer or in use."""
        path = directory / DATABASE
        _require(directory, path)
        if read_only:
            return cls(path, _opened(path, read_only=True), None)
        with ExitStack() as undo:
            lock = _locked(directory)
            undo.callback(lock.release)
            store = cls(path, _opened(path, read_only=False), lock)
            undo.callback(store.close)
            store.upgrade()
            store.set(writer=_this_process())
            undo.pop_all()
        return store

    def upgrade(self) -> None:
        """Add the tables and columns that an older version of the program did not have."""
        with self._writing() as connection:
            metadata.create_all(connection)
            for table in metadata.tables.values():
                present = {column["name"] for column in inspect(connection).get_columns(table.name)}
                for column in table.columns:
                    if column.name not in present:
                        text = CreateColumn(column).compile(connection)
                        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {text}")
            connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA_VERSION}")

    def rows(self, table: str) -> list[Row]:
        """Read all rows of a table in the order in which they were appended."""
        columns = metadata.tables[table].c
        with self._reading() as connection:
            inspector = inspect(connection)
            if not inspector.has_table(table):
                return []  # written by an older version and opened for reading only
            present = {column["name"] for column in inspector.get_columns(table)}
            missing = {c.name: _default(c) for c in columns if c.name not in present}
            known = [column for column in columns if column.name in present]
            found = connection.execute(select(*known).order_by(columns["id"]))
            return [{**missing, **row} for row in found.mappings()]

    def measurements(self) -> dict[int, Row]:
        """Read the measurements of all trials by the trial's id."""
        with self._reading() as connection:
            found = connection.execute(select(metadata.tables["measurements"]))
            return {row["trial"]: dict(row) for row in found.mappings()}

    def append(self, table: str, row: Row) -> None:
        """Add one row and commit."""
        with self._writing() as connection:
            connection.execute(insert(metadata.tables[table]), row)

    def append_trial(self, trial: Row, measurement: Row | None) -> None:
        """Add a trial together with its measurement and commit."""
        with self._writing() as connection:
            added = connection.execute(insert(metadata.tables["trials"]), trial)
            if measurement is not None:
                row = {"trial": added.lastrowid, **measurement}
                connection.execute(insert(metadata.tables["measurements"]), row)

    def replace(self, table: str, row: Row) -> None:
        """Set the row of a workload, keeping its place, or add it; commit."""
        target = metadata.tables[table]
        with self._writing() as connection:
            matching = update(target).where(target.c.workload == row["workload"])
            if connection.execute(matching.values(row)).rowcount == 0:
                connection.execute(insert(target), row)

    def remove(self, table: str, workload: str) -> None:
        """Delete the row of a workload and commit."""
        target = metadata.tables[table]
        with self._writing() as connection:
            connection.execute(delete(target).where(target.c.workload == workload))

    def set(self, **columns: str | float) -> None:
        """Set columns of the session's own row and commit."""
        with self._writing() as connection:
            connection.execute(update(metadata.tables["session"]).values(columns))

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

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with _reported(self.path), self._connection.begin():
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self._lock is None:
            raise SessionError("the session was opened for reading only", path=self.path)
        # SQLAlchemy closes the connection that an interrupt breaks into, and the run could not
        # say any more that it was interrupted.
        with held_back(), _reported(self.path), self._connection.begin():
            yield self._connection

    def discard(self) -> None:
        """Close the database and delete all that this class has written."""
        self.close()
        for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", LOCK):
            (self.path.parent / name).unlink(missing_ok=True)


def _default(column: Column[Any]) -> object:
    default = column.server_default
    return default.arg if isinstance(default, DefaultClause) else None


def _require(directory: Path, path: Path) -> None:
    remedy = "name the folder that a run printed as its session"
    if not directory.exists():
        raise SessionError("no such session", path=directory, remedy=remedy)
    if not directory.is_dir():
        raise SessionError("a session is a folder, this is a file", path=directory, remedy=remedy)
    if not path.is_file():
        raise SessionError(
            f"the folder holds no session: {DATABASE} is missing", path=directory, remedy=remedy
        )


def _build(path: Path, session: Row, environment: Mapping[str, str]) -> None:
    # Under another name first: a session that is there is complete, however early the kill.
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with closing(_connect(unfinished, "rwc")) as raw:
        raw.execute(f"PRAGMA application_id={APPLICATION_ID}")
        raw.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
        with engine.begin() as connection:
            metadata.create_all(connection)
            connection.execute(insert(metadata.tables["session"]), session)
            if environment:
                rows = [{"name": name, "value": value} for name, value in environment.items()]
                connection.execute(insert(metadata.tables["environment"]), rows)
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
                raw.execute("PRAGMA foreign_keys=ON")
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
    if version > SCHEMA_VERSION:
        raise SessionError(
            f"written by a newer version of tune: schema {version}, "
            f"this version reads up to {SCHEMA_VERSION}",
            path=path,
            remedy="upgrade with `pip install --upgrade kernel-tune`, or start a new session",
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
        with _place(directory):
            lock.acquire(blocking=False)
    except Timeout as error:
        raise SessionError(
            f"in use: {_writer(directory / DATABASE)} is writing this session",
            path=directory,
            remedy="wait for it or end it: the lock ends with the process, and deleting "
            f"{LOCK} would not help; `tune report` reads a session that is in use",
        ) from error
    return lock


def _writer(path: Path) -> str:
    with suppress(sqlite3.DatabaseError), closing(_connect(path, "ro")) as raw:
        (writer,) = raw.execute("SELECT writer FROM session").fetchone()
        return str(writer)
    return "another process"


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def _place(directory: Path) -> Iterator[None]:
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
