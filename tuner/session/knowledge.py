"""What past runs found: one table of searches in a file or on a server, for a new run to ask."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Integer,
    MetaData,
    NullPool,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.process.signals import held_back

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# Raise it with every change that an older version could not read.
SCHEMA_VERSION = 1
metadata = MetaData()
# The prefix is for servers that hold other programs' tables; lengths for those that need them.
searches = Table(
    "tune_knowledge",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("uid", String(64), nullable=False, unique=True),
    Column("kernel", String(255), nullable=False, index=True),
    Column("device", String(255), nullable=False),
    Column("created", String(64), nullable=False),
    Column("content", Text, nullable=False),  # a PastSearch as JSON
)


@dataclass(frozen=True, slots=True)
class PastConfig:
    """One config: its time, or how it failed where its status isn't `correct`."""

    config: Config
    status: Status
    time_us: float | None = None


@dataclass(frozen=True, slots=True)
class PastWorkload:
    """What a search found on one workload: the fastest configs first, then some that failed."""

    workload: Workload
    baseline_us: float | None
    configs: tuple[PastConfig, ...]


@dataclass(frozen=True, slots=True)
class PastSearch:
    """The best of one candidate's search in one run.

    `architecture` is the compile target, `sm_90a`; `parameters` are sorted names; `created` is
    when the run began (ISO 8601), and `state` what it said of itself at its end.
    """

    kernel: str
    operators: Mapping[str, str]
    device: str
    architecture: str
    candidate: str
    template_sha: str
    parameters: tuple[str, ...]
    tuner_version: str
    created: str
    state: str
    workloads: tuple[PastWorkload, ...]

    @property
    def json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def uid(self) -> str:
        """A hash of all it says: the same search is kept once, also when stores are merged."""
        return hashlib.sha256(self.json.encode()).hexdigest()


# Longer text is no search of ours, and not worth its parsing.
MOST_CHARACTERS = 2_000_000


def _read_search(content: object) -> PastSearch | None:
    if not isinstance(content, str) or len(content) > MOST_CHARACTERS:
        return None
    try:
        found = _adapter().validate_json(content, strict=True)
    except ValueError:
        return None
    return found if all(_makes_sense(found)) else None


@cache
def _adapter() -> TypeAdapter[PastSearch]:
    from pydantic import TypeAdapter

    return TypeAdapter(PastSearch)


def _makes_sense(found: PastSearch) -> Iterator[bool]:
    names = (name for one in found.workloads for name, _ in one.workload.axes)
    fields = (value for value in asdict(found).values() if isinstance(value, str))
    operators = (*found.operators, *found.operators.values())
    for text in (*fields, *operators, *found.parameters, *names):
        yield text.isprintable()  # or a terminal would take it for a command
    for workload in found.workloads:
        sizes = [size for _, size in workload.workload.axes]
        yield min(sizes, default=0) > 0
        yield workload.baseline_us is None or 0.0 < workload.baseline_us < inf
        for one in workload.configs:
            is_timed = one.time_us is not None and 0.0 < one.time_us < inf
            yield bool(one.config)
            yield is_timed if one.status is Status.CORRECT else one.time_us is None


@dataclass(frozen=True, slots=True)
class KnowledgeSummary:
    """What is known of one kernel on one device; `last` is when the last run began (ISO 8601)."""

    kernel: str
    operators: Mapping[str, str]
    device: str
    searches: int
    workloads: int
    configs: int
    speedup: float | None
    last: str


def summaries(known: Sequence[PastSearch]) -> list[KnowledgeSummary]:
    """Sum up each kernel, choice of operators and device, in the order of their names."""
    groups: dict[tuple[str, str, str], list[PastSearch]] = {}
    for search in known:
        operators = json.dumps(dict(search.operators), sort_keys=True)
        groups.setdefault((search.kernel, search.device, operators), []).append(search)
    summed = []
    for (kernel, device, _), group in sorted(groups.items(), key=lambda item: item[0]):
        found = [(one, config) for s in group for one in s.workloads for config in one.configs]
        speedups = [
            one.baseline_us / config.time_us
            for one, config in found
            if one.baseline_us is not None and config.time_us is not None
        ]
        summary = KnowledgeSummary(
            kernel=kernel,
            operators=group[0].operators,
            device=device,
            searches=len(group),
            workloads=len({one.workload.key for search in group for one in search.workloads}),
            configs=len({config.config.key for _, config in found}),
            speedup=max(speedups, default=None),
            last=max(search.created for search in group),
        )
        summed.append(summary)
    return summed


ENVIRONMENT = "TUNE_STORE"
NONE = "none"
FILE_NAME = "knowledge.sqlite"
_REMEDY = (
    "name a file, a URL such as postgresql+psycopg://HOST/DATABASE "
    "(https://docs.sqlalchemy.org/core/engines.html), or `none`"
)


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A database; `explicit` says that the command line named it."""

    url: URL
    explicit: bool = False

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database, None for one on a server."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

    def __str__(self) -> str:
        """Name it without its password."""
        return str(self.file or self.url.render_as_string(hide_password=True))


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
        return StoreLocation(_url(given.strip(), source), explicit)
    path = Path(given).expanduser().absolute()
    return StoreLocation(URL.create("sqlite", database=str(path)), explicit)


def without_password(text: str) -> str:
    """Return what `--store` was given with the password of a URL starred out."""
    if "://" not in text:
        return text
    try:
        return make_url(text).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return text.partition("://")[0] + "://..."


def _url(text: str, source: str) -> URL:
    shown = without_password(text)
    try:
        url = make_url(text)
        # Loads the driver, so that a missing one is told before anything is measured.
        url.get_dialect().import_dbapi()
    except NoSuchModuleError as error:
        raise InputError(
            f"{source}: SQLAlchemy knows no database {url.drivername!r}", remedy=_REMEDY
        ) from error
    except (ArgumentError, ValueError) as error:
        raise InputError(f"{source}: {shown!r} is no database URL", remedy=_REMEDY) from error
    except ModuleNotFoundError as error:
        raise InputError(
            f"{source}: the driver of {url.drivername} is not installed: there is no module "
            f"{error.name!r}",
            remedy=f"install it in the same environment, such as `pip install {error.name}`, or "
            "name another driver, as in postgresql+psycopg://",
        ) from error
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise InputError(f"{source}: {shown!r} keeps nothing", remedy="name a file")
    return url


# What another run's transaction is waited for, and a server that does not answer.
BUSY_S = 5.0
CONNECT_S = 5
# Searches that are looked at, the newest: older ones say little that these don't.
MOST_SEARCHES = 200
# For those who want all of them.
ALL_SEARCHES = 1_000_000


class StoreError(InputError):
    """Report a store that cannot be used now: locked, damaged, full, newer. No run ends for it."""


class KnowledgeStore:
    """Add past searches to a database and ask for them; nothing is held open between calls.

    Every call raises `StoreError` where the database fails, and `InputError` where it is none of
    ours or cannot be reached. Nothing is made before something is added.
    """

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        arguments: dict[str, Any] = {}
        if location.file is not None:
            arguments = {"timeout": BUSY_S}
        elif location.url.get_driver_name() in {"psycopg", "psycopg2"}:
            arguments = {"connect_timeout": CONNECT_S}
        self._engine = create_engine(location.url, poolclass=NullPool, connect_args=arguments)
        if location.file is not None:
            event.listen(self._engine, "connect", _prepare)
            event.listen(self._engine, "begin", _begin)

    def check(self) -> None:
        with self._reading():
            pass

    def add(self, found: Sequence[PastSearch]) -> int:
        """Add searches that are not there yet; return how many were added."""
        added = 0
        with self._writing() as connection:
            for one in found:
                known = select(searches.c.id).where(searches.c.uid == one.uid)
                if connection.execute(known).first() is None:
                    row = {
                        "version": SCHEMA_VERSION,
                        "uid": one.uid,
                        "kernel": one.kernel,
                        "device": one.device,
                        "created": one.created,
                        "content": one.json,
                    }
                    connection.execute(insert(searches), row)
                    added += 1
        return added

    def searches(self, kernel: str | None = None, *, most: int = MOST_SEARCHES) -> list[PastSearch]:
        """Read the newest searches of a kernel, or of all, oldest first; garbage is left out."""
        query = select(searches.c.content).limit(most)
        query = query.order_by(searches.c.created.desc(), searches.c.id.desc())
        if kernel is not None:
            query = query.where(searches.c.kernel == kernel)
        with self._reading() as connection:
            rows = [] if connection is None else connection.execute(query).scalars().all()
        read = (_read_search(content) for content in reversed(rows))
        return [one for one in read if one is not None]

    def forget(self, kernel: str, device: str | None = None) -> int:
        """Delete what is known of a kernel, on all devices or one; return how many searches."""
        chosen = delete(searches).where(searches.c.kernel == kernel)
        if device is not None:
            chosen = chosen.where(searches.c.device == device)
        with self._reading() as connection:
            if connection is None:
                return 0
        with self._writing() as connection:
            return connection.execute(chosen).rowcount

    @contextmanager
    def _reading(self) -> Iterator[Connection | None]:
        file = self.location.file
        with self._reported():
            if file is not None and not file.exists():
                yield None
                return
            with self._connected() as connection, connection.begin():
                yield connection if self._has_table(connection) else None

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        file = self.location.file
        # An interrupt in the middle would lose what the run found.
        with held_back(), self._reported():
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
            self._create_table()
            with self._connected(writing=True) as connection, connection.begin():
                yield connection

    def _connected(self, *, writing: bool = False) -> Connection:
        try:
            return self._engine.connect().execution_options(writing=writing)
        except DBAPIError as error:
            if self.location.file is not None:
                raise
            raise InputError(
                f"{self.location}: cannot be reached: {_cause(error)}",
                remedy="see that the server runs and lets you in, or use --store none",
            ) from error

    def _create_table(self) -> None:
        with self._connected() as connection, connection.begin():
            if self._has_table(connection):
                return
        try:
            with self._connected(writing=True) as connection, connection.begin():
                metadata.create_all(connection)
        except DBAPIError:
            # Of two runs that make the table on a server at once, the second fails and finds it.
            with self._connected() as connection, connection.begin():
                if not self._has_table(connection):
                    raise

    def _has_table(self, connection: Connection) -> bool:
        inspector = inspect(connection)
        if not inspector.has_table(searches.name):
            if self.location.file is not None and inspector.get_table_names():
                raise InputError(
                    f"{self.location}: is a database of something else",
                    remedy="name another file with --store",
                )
            return False
        version = connection.execute(select(func.max(searches.c.version))).scalar_one()
        if version is not None and version != SCHEMA_VERSION:
            raise StoreError(
                f"{self.location}: has schema {version}, "
                f"this version of tune knows {SCHEMA_VERSION}",
                remedy="upgrade with `pip install --upgrade kernel-tune`, or name another store "
                "with --store",
            )
        return True

    @contextmanager
    def _reported(self) -> Iterator[None]:
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
            if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise InputError(
                    f"{self.location}: is no SQLite database",
                    remedy="name another file with --store, or delete this one",
                ) from error
            raise StoreError(
                f"{self.location}: {_cause(error)}",
                remedy="see that it can be read and written and that the disk is not full; where "
                "it is damaged, move it away: the next run begins another",
            ) from error
        except SQLAlchemyError as error:
            raise StoreError(f"{self.location}: {_cause(error)}") from error
        except OSError as error:
            raise StoreError(f"{self.location}: {error.strerror or error}") from error


def _prepare(raw: sqlite3.Connection, record: object) -> None:
    # Not WAL: home folders are often on a network, where it does not work
    # (https://sqlite.org/wal.html), and a run writes once, for milliseconds.
    raw.isolation_level = None


def _begin(connection: Connection) -> None:
    # A transaction that first reads and then writes could not wait for another's.
    writing = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _cause(error: SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
