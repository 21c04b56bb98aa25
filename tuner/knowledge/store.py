"""The store of past searches: any database that SQLAlchemy knows, by short transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    NullPool,
    create_engine,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tuner.errors import InputError
from tuner.interrupts import held_back
from tuner.knowledge.adding import add_search, forget_searches
from tuner.knowledge.place import Place
from tuner.knowledge.reading import read_searches
from tuner.knowledge.records import PastSearch
from tuner.knowledge.schema import SCHEMA_VERSION, about, metadata

# What another run's transaction is waited for, and a server that does not answer.
BUSY_S = 5.0
CONNECT_S = 5
# Searches that are looked at, the newest: older ones say little that these don't.
MOST_SEARCHES = 200
# For those who want all of them.
ALL_SEARCHES = 1_000_000
_VERSION = "schema"


class StoreError(InputError):
    """Report a store that cannot be used now: locked, damaged, full, newer. No run ends for it."""


class Store:
    """Add past searches to a database and ask for them; nothing is held open between calls.

    Every call raises `StoreError` where the database fails, and `InputError` where it is none of
    ours or cannot be reached. Nothing is made before something is added.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._engine = _engine(place)

    def check(self) -> None:
        """Raise what asking would."""
        with self._reading():
            pass

    def add(self, found: Sequence[PastSearch]) -> int:
        """Add searches that are not there yet; return how many were added."""
        with self._writing() as connection:
            return sum(add_search(connection, one) for one in found)

    def searches(self, kernel: str | None = None, *, most: int = MOST_SEARCHES) -> list[PastSearch]:
        """Read the newest searches of a kernel, or of all, oldest first; garbage is left out."""
        with self._reading() as connection:
            return [] if connection is None else read_searches(connection, kernel, most)

    def forget(self, kernel: str, device: str | None = None) -> int:
        """Delete what is known of a kernel, on all devices or one; return how many searches."""
        with self._reading() as connection:
            if connection is None:
                return 0
        with self._writing() as connection:
            return forget_searches(connection, kernel, device)

    @contextmanager
    def _reading(self) -> Iterator[Connection | None]:
        """Connect; to None where there is no store yet."""
        file = self.place.file
        with self._reported():
            _require_folder(self.place)
            if file is not None and not file.exists():
                yield None
                return
            with self._connected() as connection, connection.begin():
                yield connection if self._is_ours(connection) else None

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        file = self.place.file
        # An interrupt in the middle would lose what the run found.
        with held_back(), self._reported():
            _require_folder(self.place)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
            with self._connected() as connection:
                self._build(connection)
            with self._connected() as connection:
                writing = connection.execution_options(writing=True)
                with writing.begin():
                    yield writing

    def _connected(self) -> Connection:
        try:
            return self._engine.connect()
        except DBAPIError as error:
            if self.place.file is not None:
                raise
            raise InputError(
                f"{self.place}: cannot be reached: {_cause(error)}",
                remedy="see that the server runs and lets you in, or use --store none",
            ) from error

    def _build(self, connection: Connection) -> None:
        with connection.begin():
            ours = self._is_ours(connection)
        if ours:
            return
        failure: DBAPIError | None = None
        try:
            with connection.execution_options(writing=True).begin():
                metadata.create_all(connection)
                connection.execute(insert(about), {"name": _VERSION, "value": str(SCHEMA_VERSION)})
        except DBAPIError as error:
            failure = error
        with connection.begin():
            # Of two runs that make the tables at once, the second fails and finds them.
            if not self._is_ours(connection) and failure is not None:
                raise failure

    def _is_ours(self, connection: Connection) -> bool:
        """Tell whether the tables are there; raise for a newer version, or another's file."""
        inspector = inspect(connection)
        if not inspector.has_table(about.name):
            if self.place.file is not None and inspector.get_table_names():
                raise InputError(
                    f"{self.place}: is a database of something else",
                    remedy="name another file with --store",
                )
            return False
        version = connection.execute(
            select(about.c.value).where(about.c.name == _VERSION)
        ).scalar_one_or_none()
        if str(version) != str(SCHEMA_VERSION):
            raise StoreError(
                f"{self.place}: has schema {version}, this version of tune knows {SCHEMA_VERSION}",
                remedy="upgrade with `pip install --upgrade kernel-tune`, or name another store "
                "with --store",
            )
        return True

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise InputError(
                    f"{self.place}: is no SQLite database",
                    remedy="name another file with --store, or delete this one",
                ) from error
            raise StoreError(
                f"{self.place}: {_cause(error)}",
                remedy="see that it can be read and written and that the disk is not full; where "
                "it is damaged, move it away: the next run begins another",
            ) from error
        except SQLAlchemyError as error:
            raise StoreError(f"{self.place}: {_cause(error)}") from error
        except OSError as error:
            raise StoreError(f"{self.place}: {error.strerror or error}") from error


def _engine(place: Place) -> Engine:
    arguments: dict[str, Any] = {}
    if place.file is not None:
        arguments = {"timeout": BUSY_S}
    elif place.url.get_driver_name() in {"psycopg", "psycopg2"}:
        arguments = {"connect_timeout": CONNECT_S}
    engine = create_engine(place.url, poolclass=NullPool, connect_args=arguments)
    if place.file is not None:
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
    return engine


def _prepare(raw: sqlite3.Connection, record: object) -> None:
    # Not WAL: home folders are often on a network, where it does not work
    # (https://sqlite.org/wal.html), and a run writes once, for milliseconds.
    raw.isolation_level = None
    raw.execute("PRAGMA foreign_keys=ON")


def _begin(connection: Connection) -> None:
    # A transaction that first reads and then writes could not wait for another's.
    writing = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _require_folder(place: Place) -> None:
    """Raise `InputError` where a named file cannot be there."""
    file = place.file
    if file is None or not place.explicit:
        return
    if file.is_dir():
        raise InputError(f"{place}: is a folder", remedy="name a file in it")
    if not file.parent.is_dir():
        raise InputError(
            f"{place}: there is no folder {file.parent}", remedy="make it, or name another"
        )


def _cause(error: SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
