"""Send a session to a PostgreSQL server while a run goes on, for other machines to go on with."""

from __future__ import annotations

import hashlib
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, func, select, update

from tuner.extensions.scale.copies import (
    found_copy,
    metadata,
    records,
    require_free,
    require_server,
    require_version,
    sessions,
)
from tuner.model.errors import InputError, SessionError
from tuner.session.database import Database, StoreLocation, find_store, insert_new
from tuner.session.store import SCHEMA_VERSION, SessionStore

# How often new records are sent: what the loss of a machine may cost.
EVERY_S = 1.0
# How often a writer without new records says that it is there.
HEARTBEAT_S = 15.0
# How long a run that ends waits for a server that is away.
FLUSH_S = 30.0
_ROWS = 100


class LeaseLostError(SessionError):
    """Report that another process has taken over a session's copy."""


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
            self._sent = self._database.write(self._taken)
        while True:
            state = self._local.columns("state", "seconds")
            rows = self._local.rows(self._sent, _ROWS)
            is_due = time.monotonic() - self._said_s > HEARTBEAT_S
            if not rows and state == self._said and not is_due:
                return
            self._database.write(partial(self._added, state, rows))
            self._said, self._said_s = state, time.monotonic()
            if rows:
                self._sent = rows[-1][0]

    def release(self) -> None:
        """Let others go on with the session at once."""
        if self._sent is None:
            return
        freed = update(sessions).where(self._is_mine).values(token="")
        self._database.write(lambda connection: connection.execute(freed))

    def close(self) -> None:
        self._database.close()

    def _row(self) -> dict[str, Any]:
        manifest, environment, state, seconds = self._local.columns(
            "manifest", "environment", "state", "seconds"
        )
        return {
            "id": self._id,
            "version": SCHEMA_VERSION,
            "kernel": self._local.header().manifest.kernel,
            "manifest": manifest,
            "environment": environment,
            "state": state,
            "seconds": seconds,
            "writer": self._writer,
            "token": self._token,
        }

    def _taken(self, connection: Connection) -> int:
        """Become the writer; return how many records are there already."""
        insert_new(connection, sessions, [self._row()])
        row = found_copy(connection, self._id, locking=True)
        if row is None:
            raise LeaseLostError(f"{self._location}: the session was forgotten meanwhile")
        require_version(row, self._location)
        require_free(row, self._location, writer=self._writer)
        chosen = update(sessions).where(sessions.c.id == self._id)
        mine = {"writer": self._writer, "token": self._token, "heard": func.now()}
        connection.execute(chosen.values(mine))
        digest = func.encode(func.sha256(func.convert_to(records.c.content, "UTF8")), "hex")
        query = select(records.c.number, digest).where(records.c.session == self._id)
        there = connection.execute(query.order_by(records.c.number))
        return self._agreed((number, found) for number, found in there)

    def _agreed(self, there: Iterable[tuple[int, str]]) -> int:
        """Count the records that are there; they must be the first of the folder's."""
        count, ours = 0, self._local_rows()
        for number, digest in there:
            _, _, content = next(ours, (0, "", ""))
            if number != count + 1 or hashlib.sha256(content.encode()).hexdigest() != digest:
                raise SessionError(
                    f"{self._location}: the copy has another record {count + 1}, or one that the "
                    "folder lacks: the session went on elsewhere, or lost its end with its disk",
                    path=self._local.path.parent,
                    remedy=f"go on with the copy: `tune session fetch {self._id} DIR`, then "
                    "`tune --resume DIR`",
                )
            count = number
        return count

    def _local_rows(self) -> Iterator[tuple[int, str, str]]:
        last = 0
        while rows := self._local.rows(last, _ROWS):
            yield from rows
            last = rows[-1][0]

    def _added(
        self,
        state: tuple[object, ...],
        rows: list[tuple[int, str, str]],
        connection: Connection,
    ) -> None:
        # The row stays locked until the records are there: nobody takes over in between.
        columns = dict(zip(("state", "seconds"), state, strict=True)) | {"heard": func.now()}
        chosen = update(sessions).where(self._is_mine).values(columns)
        if connection.execute(chosen).rowcount == 0:
            raise LeaseLostError(
                f"{self._location}: another process has taken over the session, or forgot it"
            )
        names = ("session", "number", "kind", "content")
        added = [dict(zip(names, (self._id, *row), strict=True)) for row in rows]
        insert_new(connection, records, added)


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
                local = SessionStore.open(self._folder, read_only=True)
                stack.callback(local.close)
                copy = SessionCopy(self._location, local)
                stack.callback(copy.close)
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


def copy_session(folder: Path, location: StoreLocation) -> str:
    """Send what a session's copy lacks and return its id there.

    Raises `SessionError` while another process writes the session or its copy, and where nothing
    was measured yet.
    """
    with ExitStack() as stack:
        stack.callback(SessionStore.open(folder, read_only=False).close)
        local = SessionStore.open(folder, read_only=True)
        stack.callback(local.close)
        copy = SessionCopy(location, local)
        stack.callback(copy.close)
        if not local.is_used:
            raise SessionError("nothing was measured yet, and nothing is copied", path=folder)
        copy.begin()
        copy.release()
        return local.identity


def copying(
    folder: Path, option: str | None, environment: Mapping[str, str], warn: Callable[[str], None]
) -> SessionCopier:
    """Make what copies a session to the server that `--store` or the environment names."""
    return SessionCopier(folder, require_server(find_store(option, environment)), warn)
