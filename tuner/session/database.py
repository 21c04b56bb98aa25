"""The database of a store: where it is, how it is reached, and what its failures mean."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    MetaData,
    NullPool,
    QueuePool,
    RootTransaction,
    Table,
    create_engine,
    event,
    func,
    inspect,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)

from tuner.model.errors import InputError
from tuner.process.child import held_back

_T = TypeVar("_T")

ENVIRONMENT = "TUNE_STORE"
NONE = "none"
FILE_NAME = "knowledge.sqlite"
SQLITE, POSTGRESQL = "sqlite", "postgresql"
_DRIVER = "psycopg"
_REMEDY = "name a file, a URL such as postgresql://USER@HOST/DATABASE, or `none`"
_SECRETS = ("password", "sslpassword")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A database; `explicit` says that the command line named it."""

    url: URL
    explicit: bool = False

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database, None for one on a server."""
        return Path(self.url.database or "") if self.url.get_backend_name() == SQLITE else None

    def __str__(self) -> str:
        """Name it without its password."""
        return str(self.file or _hide_secrets(self.url))


def find_store(option: str | None, environment: Mapping[str, str]) -> StoreLocation | None:
    """Find a run's store, None for none; raise `InputError` for text that names no database."""
    given = option if option is not None else environment.get(ENVIRONMENT)
    source = "--store" if option is not None else ENVIRONMENT
    if given is None:
        from platformdirs import user_data_path

        given = str(user_data_path("kernel-tune") / FILE_NAME)
    if given.strip() == NONE:
        return None
    if not given.strip():
        raise InputError(f"{source} is empty", remedy=_REMEDY)
    explicit = option is not None
    if "://" in given:
        return StoreLocation(_read_url(given.strip(), source), explicit)
    path = Path(given).expanduser().absolute()
    return StoreLocation(URL.create(SQLITE, database=str(path)), explicit)


def without_password(text: str) -> str:
    """Return what `--store` was given with the password of a URL starred out."""
    if "://" not in text:
        return text
    try:
        return _hide_secrets(make_url(text))
    except (ArgumentError, ValueError):
        return text.partition("://")[0] + "://..."


def _hide_secrets(url: URL) -> str:
    secrets = {name: "***" for name in _SECRETS if name in url.query}
    plain = url.update_query_dict(secrets).set(drivername=url.get_backend_name())
    return plain.render_as_string(hide_password=True)


def _read_url(text: str, source: str) -> URL:
    shown = without_password(text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise InputError(f"{source}: {shown!r} is no database URL", remedy=_REMEDY) from error
    backend, _, driver = url.drivername.partition("+")
    # `postgres` as libpq and most providers of servers have it
    if url.drivername == "postgres" or (backend == POSTGRESQL and driver in ("", _DRIVER)):
        try:
            # So that a missing one is told before anything is measured.
            import psycopg  # noqa: F401
        except ImportError as error:  # also where it is there without libpq
            raise InputError(
                f"{source}: the driver of PostgreSQL cannot be used: {str(error).splitlines()[0]}",
                remedy="pip install -e '.[postgresql]' in the checkout",
            ) from error
        return url.set(drivername=f"{POSTGRESQL}+{_DRIVER}")
    if url.drivername not in (SQLITE, "sqlite+pysqlite"):
        raise InputError(f"{source}: tune knows no database {url.drivername!r}", remedy=_REMEDY)
    if url.database in (None, "", ":memory:"):
        raise InputError(f"{source}: {shown!r} keeps nothing", remedy="name a file")
    return url


# What another run's transaction in a file is waited for.
BUSY_S = 5.0
# What a server that does not answer is waited for, and what one that was there and is gone: a
# restart takes seconds.
CONNECT_S = 5
RESTART_S = 30.0
_PAUSE_S = 0.25
_STATEMENT_S = 60
# What libpq is told, but for what the URL itself says.
_SERVER_SETTINGS: Mapping[str, object] = {
    "application_name": "tune",
    # A server whose machine is gone is given up within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    # Poolers such as PgBouncer may give each transaction another connection.
    "prepare_threshold": None,
}
# "tune" in ASCII: who makes the tables holds this lock of the server's.
_LOCK = 0x74756E65
# SQLSTATE: insufficient_privilege, read_only_sql_transaction
_REFUSED = frozenset({"42501", "25006"})
# admin_shutdown, crash_shutdown, cannot_connect_now
_GONE = frozenset({"57P01", "57P02", "57P03"})
# serialization_failure, deadlock_detected
_UNLUCKY = frozenset({"40001", "40P01"})
# A server that refuses a connection says why in words alone: libpq passes no SQLSTATE on.
_CONNECT_REMEDIES = {
    "password": "put the right one into ~/.pgpass or PGPASSWORD",
    "does not exist": "see that user and database are spelt right, or make them with createuser "
    "and createdb",
    "pg_hba.conf": "let this machine in, in the server's pg_hba.conf",
    "too many": "raise the server's max_connections, or wait for others to end",
}
_CONNECT_REMEDY = "see that the server runs and lets you in, or"
NAME_ANOTHER = "name another with --store"
_FILE_REMEDY = (
    "see that it can be read and written and that the disk is not full; where it is damaged, move "
    "it away: the next run begins another"
)
_SERVER_REMEDY = "see what the server's log says, and that its disk is not full"


class StoreError(InputError):
    """Report a store that cannot be used now: locked, damaged, full, newer. No run ends for it."""


class ReadOnlyError(StoreError):
    """Report a store that may be read and not written; a run that names it does not begin."""


class Database:
    """Run transactions on tables of ours; between them nothing is held open, unless `pooled`.

    All raise `StoreError` where the database fails, and `InputError` where it is none of ours or
    cannot be reached. A server that was reached before and is gone is waited for, if `waits`.
    `instead` is what a user can do where none is to be had.
    """

    def __init__(
        self,
        location: StoreLocation,
        tables: MetaData,
        *,
        pooled: bool = False,
        waits: bool = True,
        instead: str = NAME_ANOTHER,
    ) -> None:
        self.location = location
        self._tables, self._waits, self._instead = tables, waits, instead
        self._was_reached = False
        if location.file is not None:
            self._engine = create_engine(
                location.url, poolclass=NullPool, connect_args={"timeout": BUSY_S}
            )
            event.listen(self._engine, "connect", _prepare)
        else:
            pool: dict[str, Any] = {"poolclass": NullPool}
            if pooled:
                pool = {"poolclass": QueuePool, "pool_size": 1, "pool_pre_ping": True}
            settings = {**_SERVER_SETTINGS, "connect_timeout": CONNECT_S}
            arguments = {k: value for k, value in settings.items() if k not in location.url.query}
            self._engine = create_engine(location.url, connect_args=arguments, **pool)
        event.listen(self._engine, "begin", _begin)

    def close(self) -> None:
        """Close the connection that a pool holds."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection | None]:
        """Begin a transaction that reads; None where there are no tables yet."""
        file = self.location.file
        with self._report_errors():
            if file is not None and not file.exists():
                yield None
                return
            with self._engine.connect() as connection, connection.begin():
                self._was_reached = True
                yield connection if self._has_tables(connection) else None

    def write(self, work: Callable[[Connection], _T]) -> _T:
        """Do work in one transaction, and make the tables where there are none.

        It is done again where the connection or the server was lost, even if only the answer to
        its commit was: what it writes twice must be there once.
        """
        ends_s = time.monotonic() + (RESTART_S if self._waits else 0.0)
        with self._report_errors():
            if self.location.file is not None:
                self.location.file.parent.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    # An interrupt in the middle would lose what the run found.
                    with held_back(), self._writing() as (connection, _):
                        return work(connection)
                except DBAPIError as error:
                    # A file is waited for by SQLite itself.
                    is_server = self.location.file is None and self._was_reached
                    may_pass = is_server and (_is_unreachable(error) or _state(error) in _UNLUCKY)
                    if not may_pass or time.monotonic() > ends_s:
                        raise
                time.sleep(_PAUSE_S)

    def try_writing(self, work: Callable[[Connection], object]) -> None:
        """Do work, and take it back with all that it needed."""
        if self.location.file is not None and not self.location.file.exists():
            return
        with self._report_errors(), self._writing() as (connection, transaction):
            work(connection)
            transaction.rollback()

    @contextmanager
    def _writing(self) -> Iterator[tuple[Connection, RootTransaction]]:
        with self._engine.connect() as plain:
            connection = plain.execution_options(writing=True)
            with connection.begin() as transaction:
                self._was_reached = True
                if not self._has_tables(connection):
                    if self.location.file is None:
                        # Of two that make a table at once the second would fail, IF NOT EXISTS or
                        # not.
                        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
                    self._tables.create_all(connection)
                yield connection, transaction

    def _has_tables(self, connection: Connection) -> bool:
        inspector = inspect(connection)
        if all(inspector.has_table(table.name) for table in self._tables.sorted_tables):
            return True
        if self.location.file is not None and inspector.get_table_names():
            raise InputError(
                f"{self.location}: is a database of something else",
                remedy="name another file with --store",
            )
        return False

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        file = self.location.file
        if file is not None and self.location.explicit:
            if file.is_dir():
                raise InputError(f"{file}: is a folder", remedy="name a file in it")
            if not file.parent.is_dir():
                message = f"{file}: there is no folder {file.parent}"
                raise InputError(message, remedy="make it, or name another")
        try:
            yield
        except DBAPIError as error:
            raise self._error(error) from error
        except SQLAlchemyError as error:
            raise StoreError(f"{self.location}: {_cause(error)}") from error
        except OSError as error:
            raise StoreError(f"{self.location}: {error.strerror or error}") from error

    def _error(self, error: DBAPIError) -> InputError:
        cause = _cause(error)
        message = f"{self.location}: {cause}"
        if self.location.file is not None:
            code = getattr(error.orig, "sqlite_errorcode", 0)
            if code == sqlite3.SQLITE_NOTADB:
                return InputError(
                    f"{self.location}: is no SQLite database",
                    remedy="name another file with --store, or delete this one",
                )
            # The low byte is the kind, the others say more of it.
            kind = ReadOnlyError if code & 0xFF == sqlite3.SQLITE_READONLY else StoreError
            return kind(message, remedy=_FILE_REMEDY)
        if _is_unreachable(error):
            remedies = (remedy for word, remedy in _CONNECT_REMEDIES.items() if word in cause)
            return InputError(
                f"{self.location}: cannot be reached: {cause}",
                remedy=next(remedies, f"{_CONNECT_REMEDY} {self._instead}"),
            )
        if _state(error) in _REFUSED:
            return ReadOnlyError(
                f"{self.location}: may not be used so: {cause}",
                remedy="see that it is no standby, and let its owner GRANT SELECT, INSERT, UPDATE "
                "and DELETE on the tables tune_*, and CREATE on the schema where there are none "
                "yet; or name another with --store",
            )
        return StoreError(message, remedy=_SERVER_REMEDY)


def _prepare(raw: sqlite3.Connection, record: object) -> None:
    # Not WAL: home folders are often on a network, where it does not work
    # (https://sqlite.org/wal.html), and a run writes once, for milliseconds.
    raw.isolation_level = None


def _begin(connection: Connection) -> None:
    if connection.dialect.name == POSTGRESQL:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{_STATEMENT_S}s'")
        return
    # A transaction that first reads and then writes could not wait for another's.
    writing = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _cause(error: SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]


def _state(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _is_unreachable(error: DBAPIError) -> bool:
    state = _state(error)
    if not state:  # a word in the URL that libpq does not know is a `ProgrammingError`
        return isinstance(error, (OperationalError, ProgrammingError))
    return state.startswith("08") or state in _GONE


# Rows of one statement: of a session's records some are megabytes.
_ROWS = 100


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> int:
    """Insert the rows whose keys are not there yet, nor being written by others; count them."""
    insert = postgresql.insert if connection.dialect.name == POSTGRESQL else sqlite.insert
    added = 0
    for first in range(0, len(rows), _ROWS):
        statement = insert(table).values(rows[first : first + _ROWS]).on_conflict_do_nothing()
        counted = statement.execution_options(preserve_rowcount=True)
        added += connection.execute(counted).rowcount
    return added
