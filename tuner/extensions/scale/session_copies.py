"""Sessions on a PostgreSQL server, for several machines: send, list, fetch and forget them."""

from __future__ import annotations

import hashlib
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

from sqlalchemy import (
    Column,
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
    update,
)

from tuner.model.errors import InputError, SessionError
from tuner.session.database import Database, StoreLocation, find_store, insert_new
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

_COLUMNS = ("manifest", "environment", "state", "seconds")
# Of these so many characters are shown: others may write them.
_SHOWN_TEXTS, _SHOWN = ("id", "kernel", "state", "writer"), 200
_AGE_S = func.extract("epoch", func.now() - sessions.c.heard)

# When a writer that says nothing is taken for gone.
LEASE_S = 60
# How often new records are sent: what the loss of a machine may cost.
EVERY_S = 1.0
# How often a writer without new records says that it is there.
HEARTBEAT_S = 15.0
# How long a run that ends waits for a server that is away.
FLUSH_S = 30.0
# Records are megabytes at most, in all likelihood kilobytes.
_FETCHED_ROWS = 20
_SENT_ROWS = 100


class LeaseLostError(SessionError):
    """Report that another process has taken over a session's copy."""


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
        in_use = (sessions.c.token != "") & (_AGE_S < LEASE_S)
        texts = (func.left(sessions.c[name], _SHOWN).label(name) for name in _SHOWN_TEXTS)
        query = select(*texts, count.label("records"), sessions.c.heard, in_use.label("in_use"))
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
        mine = records.c.session == name
        texts = (*_SHOWN_TEXTS, "manifest", "environment")
        header_bytes = func.greatest(*(func.octet_length(sessions.c[one]) for one in texts))
        with self._database.reading() as connection:
            for what, longest in (
                ("header", select(header_bytes).where(sessions.c.id == name)),
                ("record", select(func.max(func.octet_length(records.c.content))).where(mine)),
            ):
                found = None if connection is None else connection.execute(longest).scalar()
                if (found or 0) > MOST_RECORD_BYTES:
                    message = f"the session {name} has a {what} of over {MOST_RECORD_BYTES} bytes"
                    raise SessionError(message)
            row = None if connection is None else _find_copy(connection, name)
            if connection is None or row is None:
                raise self._missing(name)
            _require_version(row, self.location)
            columns = {column: getattr(row, column) for column in _COLUMNS}
            try:
                header = SessionHeader.from_row(*columns.values())
            except ValueError as error:
                raise SessionError(f"the session {name} is damaged: {error}") from error
            try:
                store = SessionStore.create(folder, header.manifest, header.environment)
            except SessionError as error:
                raise SessionError(
                    error.message, path=folder, remedy="name another folder"
                ) from error
            query = select(records.c.number, records.c.kind, records.c.content).where(mine)
            in_order = query.order_by(records.c.number).execution_options(yield_per=_FETCHED_ROWS)
            try:
                with connection.execute(in_order) as rows:
                    count = store.restore((number, kind, text) for number, kind, text in rows)
                # As they are written there: the session's identity is in them.
                store.update(**columns)
                Session(folder, store).close()  # which reads it all
            except BaseException:
                store.discard()
                raise
        return count

    def forget(self, name: str) -> None:
        """Delete a session's copy; raise `SessionError` while somebody writes it."""

        def work(connection: Connection) -> bool:
            row = _find_copy(connection, name, locking=True)
            if row is None:
                return False
            _require_free(row, self.location, writer="")
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


def _find_copy(connection: Connection, name: str, *, locking: bool = False) -> Row[Any] | None:
    """Find a session by its id, and lock its row until the transaction ends."""
    query = select(sessions).add_columns(_AGE_S.label("age_s")).where(sessions.c.id == name)
    found: Row[Any] | None = connection.execute(
        query.with_for_update() if locking else query
    ).one_or_none()
    return found


def _require_version(row: Row[Any], location: StoreLocation) -> None:
    if row.version != SCHEMA_VERSION:
        raise SessionError(
            f"{location}: the session {row.id} has schema {row.version}, this version of tune "
            f"knows {SCHEMA_VERSION}",
            remedy="use the version of tune that wrote it",
        )


def _require_free(row: Row[Any], location: StoreLocation, *, writer: str) -> None:
    """Raise `SessionError` while somebody else than `writer` writes a session."""
    if row.token and row.writer != writer and row.age_s < LEASE_S:
        raise SessionError(
            f"{location}: the session {row.id} is in use: {row.writer} writes it, and was heard of "
            f"{max(0, int(row.age_s))} s ago",
            remedy=f"end that run, or wait: {LEASE_S} s after its last word others may go on",
        )


class SessionCopy:
    """One session's copy, for the process that has the session's lock.

    `local` is the session opened for reading, by the thread that sends.
    """

    def __init__(self, location: StoreLocation, local: SessionStore) -> None:
        self._location, self._local = location, local
        self._database = Database(location, metadata, pooled=True, waits=False)
        self._token = secrets.token_hex(16)
        # Where the same folder is written from again, whoever wrote it has lost its lock.
        self._writer = f"{socket.gethostname()}:{local.path.parent.resolve()}"
        self._id = local.identity
        self._is_mine = (sessions.c.id == self._id) & (sessions.c.token == self._token)
        self._sent: int | None = None
        self._said: tuple[object, ...] = ()
        self._said_s = 0.0

    def begin(self) -> None:
        """See that the server can be written; take over a session that has measurements."""
        row = self._row()
        self._database.try_writing(lambda connection: insert_new(connection, sessions, [row]))
        self.send()

    def send(self) -> None:
        """Send all that is new; raise `LeaseLostError` where another process goes on with it."""
        if self._sent is None:
            if not self._local.is_used:
                return  # a run that is refused before it measures leaves nothing
            self._sent = self._database.write(self._take_over)
        while True:
            state = self._local.columns("state", "seconds")
            rows = self._local.rows(self._sent, _SENT_ROWS)
            is_due = time.monotonic() - self._said_s > HEARTBEAT_S
            if not rows and state == self._said and not is_due:
                return
            self._database.write(partial(self._add, state, rows))
            self._said, self._said_s = state, time.monotonic()
            if rows:
                self._sent = rows[-1][0]

    def _add(
        self, state: tuple[object, ...], rows: list[tuple[int, str, str]], connection: Connection
    ) -> None:
        # The row stays locked until the records are there: nobody takes over in between.
        columns = {"state": state[0], "seconds": state[1], "heard": func.now()}
        said = connection.execute(update(sessions).where(self._is_mine).values(columns))
        if said.rowcount == 0:
            raise LeaseLostError(
                f"{self._location}: another process has taken over the session, or forgot it"
            )
        names = ("session", "number", "kind", "content")
        added = [dict(zip(names, (self._id, *row), strict=True)) for row in rows]
        insert_new(connection, records, added)

    def release(self) -> None:
        """Let others go on with the session at once."""
        if self._sent is None:
            return
        freed = update(sessions).where(self._is_mine).values(token="")
        self._database.write(lambda connection: connection.execute(freed))

    def close(self) -> None:
        self._database.close()

    def _row(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "version": SCHEMA_VERSION,
            "kernel": self._local.header().manifest.kernel,
            **dict(zip(_COLUMNS, self._local.columns(*_COLUMNS), strict=True)),
            "writer": self._writer,
            "token": self._token,
        }

    def _take_over(self, connection: Connection) -> int:
        """Become the writer; count the records that are there, which the folder must have too."""
        insert_new(connection, sessions, [self._row()])
        row = _find_copy(connection, self._id, locking=True)
        if row is None:
            raise LeaseLostError(f"{self._location}: the session was forgotten meanwhile")
        _require_version(row, self._location)
        _require_free(row, self._location, writer=self._writer)
        mine = {"writer": self._writer, "token": self._token, "heard": func.now()}
        connection.execute(update(sessions).where(sessions.c.id == self._id).values(mine))
        digest = func.encode(func.sha256(func.convert_to(records.c.content, "UTF8")), "hex")
        query = select(records.c.number, digest).where(records.c.session == self._id)
        there, count = connection.execute(query.order_by(records.c.number)), 0
        while page := [tuple(one) for one in there.fetchmany(_SENT_ROWS)]:
            here = [
                (number, hashlib.sha256(content.encode()).hexdigest())
                for number, _, content in self._local.rows(count, len(page))
            ]
            pairs = zip(page, here, strict=False)
            agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            count += agreed
            if agreed < len(page):
                raise SessionError(
                    f"{self._location}: the copy has another record {count + 1}, or one that the "
                    "folder lacks: the session went on elsewhere, or lost its end with its disk",
                    path=self._local.path.parent,
                    remedy=f"go on with the copy: `tune session fetch {self._id} DIR`, then "
                    "`tune --resume DIR`",
                )
        return count


@contextmanager
def _open_copy(folder: Path, location: StoreLocation) -> Iterator[tuple[SessionStore, SessionCopy]]:
    with ExitStack() as stack:
        local = SessionStore.open(folder, read_only=True)
        stack.callback(local.close)
        copy = SessionCopy(location, local)
        stack.callback(copy.close)
        yield local, copy


def copy_session(folder: Path, location: StoreLocation) -> str:
    """Send what a session's copy lacks and return its id there.

    Raises `SessionError` while another process writes the session or its copy, and where nothing
    was measured yet.
    """
    with ExitStack() as stack:
        stack.callback(SessionStore.open(folder, read_only=False).close)
        local, copy = stack.enter_context(_open_copy(folder, location))
        if not local.is_used:
            raise SessionError("nothing was measured yet, and nothing is copied", path=folder)
        copy.begin()
        copy.release()
        return local.identity


class SessionCopier:
    """Keep a session's copy up to date from a thread, for as long as the block lasts.

    What keeps it from being begun is raised as the block is entered. Later failures are told to
    `warn` once, and again at the end where something is still missing.
    """

    def __init__(self, folder: Path, location: StoreLocation, warn: Callable[[str], None]) -> None:
        self._folder, self._location, self._warn = folder, location, warn
        self._ready, self._ending = threading.Event(), threading.Event()
        self._refusal: InputError | None = None
        self._problem: InputError | None = None
        self._was_told = self._is_complete = False
        # One that hangs in a call must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="session-copier", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._refusal is not None:
            raise self._refusal
        return self

    def __exit__(self, *failure: object) -> None:
        self._ending.set()
        self._thread.join(2 * FLUSH_S)
        if self._is_complete or isinstance(self._problem, LeaseLostError):
            return
        found = self._problem.message if self._problem else f"{self._location}: gives no answer"
        self._warn(
            f"the last records are not in the session's copy: {found}; later "
            f"`tune session copy {shlex.quote(str(self._folder))}` sends them"
        )

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                _, copy = stack.enter_context(_open_copy(self._folder, self._location))
                copy.begin()
            except InputError as error:
                self._refusal = error
                return
            finally:
                self._ready.set()
            self._follow(copy)

    def _follow(self, copy: SessionCopy) -> None:
        while not self._ending.wait(EVERY_S):
            self._send(copy)
            if isinstance(self._problem, LeaseLostError):
                return
        ends_s = time.monotonic() + FLUSH_S
        self._send(copy)
        # Who has lost it does not get it back.
        while not isinstance(self._problem, LeaseLostError | None) and time.monotonic() < ends_s:
            time.sleep(EVERY_S)
            self._send(copy)
        self._is_complete = self._problem is None
        with suppress(InputError):  # the lease ends by itself
            copy.release()

    def _send(self, copy: SessionCopy) -> None:
        try:
            copy.send()
        except LeaseLostError as error:
            self._problem = error
            self._warn(f"the session is not copied any more: {error.message}")
        except InputError as error:
            self._problem = error
            if not self._was_told:
                self._was_told = True
                self._warn(f"the session is not copied for now: {error.message}")
        else:
            self._problem = None


def copying(
    folder: Path, option: str | None, environment: Mapping[str, str], warn: Callable[[str], None]
) -> SessionCopier:
    """Make what copies a session to the server that `--store` or the environment names."""
    return SessionCopier(folder, require_server(find_store(option, environment)), warn)
