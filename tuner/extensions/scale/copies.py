"""Sessions on a PostgreSQL server, for several machines: list them, fetch one, forget one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    delete,
    func,
    select,
)

from tuner.model.errors import InputError, SessionError
from tuner.session.database import Database, StoreLocation
from tuner.session.records import SessionHeader
from tuner.session.session import Session
from tuner.session.store import MOST_RECORD_BYTES, SCHEMA_VERSION, SessionStore

metadata = MetaData()
# What `session.db` holds. Who has the `token` may add records; `heard` is when it last did.
sessions = Table(
    "tune_session",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("kernel", Text, nullable=False),
    Column("manifest", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("writer", Text, nullable=False),
    Column("token", String(64), nullable=False),
    Column("heard", DateTime(timezone=True), nullable=False, server_default=func.now()),
)
records = Table(
    "tune_session_record",
    metadata,
    Column("session", ForeignKey(sessions.c.id, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("content", Text, nullable=False),
)

# When a writer that says nothing is taken for gone.
LEASE_S = 60
# Records are megabytes at most, in all likelihood kilobytes.
_FETCHED_ROWS = 20


@dataclass(frozen=True, slots=True)
class CopySummary:
    """One session on a server; `writer` is who wrote it last, and may still be at it."""

    id: str
    kernel: str
    state: str
    records: int
    heard: datetime
    in_use: bool
    writer: str


def require_server(location: StoreLocation | None) -> StoreLocation:
    """Return the location of a server; raise `InputError` for a file or none."""
    if location is None or location.file is not None:
        found = "there is no store: it is `none`" if location is None else f"{location}: is a file"
        raise InputError(
            f"{found}, and sessions are copied to servers only",
            remedy="name one with --store postgresql://USER@HOST/DATABASE",
        )
    return location


class SessionCopies:
    """The sessions on a server: list them, fetch one into a folder, forget one."""

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self._database = Database(location, metadata)

    def summaries(self) -> list[CopySummary]:
        """List the sessions, the most recently updated last."""
        count = select(func.count()).where(records.c.session == sessions.c.id).scalar_subquery()
        in_use = (sessions.c.token != "") & (_seconds_since_heard() < LEASE_S)
        named = (sessions.c.id, sessions.c.kernel, sessions.c.state, count.label("records"))
        query = select(*named, sessions.c.heard, in_use.label("in_use"), sessions.c.writer)
        with self._database.reading() as connection:
            if connection is None:
                return []
            found = connection.execute(query.order_by(sessions.c.heard, sessions.c.id))
            return [CopySummary(**one._mapping) for one in found]

    def fetch(self, name: str, folder: Path) -> int:
        """Make a session's folder again, and return how many records it has.

        Raises `InputError` where there is none of this id, and `SessionError` where the folder
        holds a session already or the copy is not what `tune` writes.
        """
        with self._database.reading() as connection:
            row = None if connection is None else found_copy(connection, name)
            if connection is None or row is None:
                raise self._missing(name)
            require_version(row, self.location)
            return _restored(connection, row, folder)

    def forget(self, name: str) -> None:
        """Delete a session's copy; raise `SessionError` while somebody writes it."""

        def work(connection: Connection) -> bool:
            row = found_copy(connection, name, locking=True)
            if row is None:
                return False
            require_free(row, self.location, writer="")
            connection.execute(delete(sessions).where(sessions.c.id == name))
            return True

        with self._database.reading() as connection:
            is_there = connection is not None
        if not (is_there and self._database.write(work)):
            raise self._missing(name)

    def _missing(self, name: str) -> InputError:
        return InputError(
            f"{self.location}: there is no session {name!r}",
            remedy="`tune session list` names what is",
        )


def found_copy(connection: Connection, name: str, *, locking: bool = False) -> Row[Any] | None:
    """Find a session by its id, and lock its row until the transaction ends."""
    age_s = _seconds_since_heard().label("age_s")
    query = select(sessions).add_columns(age_s).where(sessions.c.id == name)
    found: Row[Any] | None = connection.execute(
        query.with_for_update() if locking else query
    ).one_or_none()
    return found


def _seconds_since_heard() -> ColumnElement[int]:
    return func.extract("epoch", func.now() - sessions.c.heard)


def require_version(row: Row[Any], location: StoreLocation) -> None:
    """Raise `SessionError` for a session that another version of `tune` wrote."""
    if row.version != SCHEMA_VERSION:
        raise SessionError(
            f"{location}: the session {row.id} has schema {row.version}, this version of tune "
            f"knows {SCHEMA_VERSION}",
            remedy="use the version of tune that wrote it",
        )


def require_free(row: Row[Any], location: StoreLocation, *, writer: str) -> None:
    """Raise `SessionError` while somebody else than `writer` writes a session."""
    if row.token and row.writer != writer and row.age_s < LEASE_S:
        raise SessionError(
            f"{location}: the session {row.id} is in use: {row.writer} writes it, and was heard of "
            f"{max(0, int(row.age_s))} s ago",
            remedy=f"end that run, or wait: {LEASE_S} s after its last word others may go on",
        )


def _restored(connection: Connection, row: Row[Any], folder: Path) -> int:
    """Write the folder of a copy; nothing of it stays where the copy is none of ours."""
    mine = records.c.session == row.id
    most = connection.execute(select(func.max(func.octet_length(records.c.content))).where(mine))
    if (most.scalar() or 0) > MOST_RECORD_BYTES:
        raise SessionError(f"the session {row.id} has a record of over {MOST_RECORD_BYTES} bytes")
    texts = (row.manifest, row.environment, row.state, row.seconds)
    try:
        header = SessionHeader.from_row(*texts)
    except ValueError as error:
        raise SessionError(f"the session {row.id} is damaged: {error}") from error
    query = select(records.c.number, records.c.kind, records.c.content).where(mine)
    in_order = query.order_by(records.c.number).execution_options(yield_per=_FETCHED_ROWS)
    try:
        store = SessionStore.create(folder, header.manifest, header.environment)
    except SessionError as error:
        raise SessionError(error.message, path=folder, remedy="name another folder") from error
    try:
        with connection.execute(in_order) as found:
            count = store.restore((number, kind, content) for number, kind, content in found)
        # As they are written there: the session's identity is in them.
        names = ("manifest", "environment", "state", "seconds")
        store.update(**dict(zip(names, texts, strict=True)))
        Session(folder, store).close()  # which reads it all
    except BaseException:
        store.discard()
        raise
    return count
