"""The tables of a store. Rows are added and forgotten, never changed."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Connection,
    Double,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    NullPool,
    Select,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.process.signals import held_back

if TYPE_CHECKING:
    from sqlalchemy import URL

# Raise it with every change that an older version could not read.
SCHEMA_VERSION = 1

metadata = MetaData()

# The prefix is for servers, where a database may hold the tables of other programs. Lengths are
# for databases that need them: JSON is Text, for it may be long.
about = Table(
    "tune_about",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", String(64), nullable=False),
)
searches = Table(
    "tune_searches",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uid", String(64), nullable=False, unique=True),
    Column("kernel", String(255), nullable=False, index=True),
    Column("operators", Text, nullable=False),  # JSON
    Column("device", String(255), nullable=False),
    Column("architecture", String(16), nullable=False),
    Column("candidate", String(255), nullable=False),
    Column("template_sha", String(64), nullable=False),
    Column("parameters", Text, nullable=False),  # JSON
    Column("tuner_version", String(64), nullable=False),
    Column("created", String(64), nullable=False),
    Column("state", String(32), nullable=False),
)
workloads = Table(
    "tune_workloads",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("search", Integer, ForeignKey("tune_searches.id"), nullable=False, index=True),
    Column("axes", Text, nullable=False),  # JSON: pairs, in the order of the axes
    Column("baseline_us", Double),
)
configs = Table(
    "tune_configs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("workload", Integer, ForeignKey("tune_workloads.id"), nullable=False, index=True),
    Column("config", Text, nullable=False),  # JSON: pairs, in the order of the space
    Column("status", String(32), nullable=False),
    Column("time_us", Double),
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

    `architecture` is the compile target, `sm_90a`. `parameters` are the names of the space's
    parameters, sorted. `created` is when the run began (ISO 8601), and `state` what it said of
    itself at its end.
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
    def uid(self) -> str:
        """A hash of all it says: the same search is kept once, also when stores are merged."""
        whole = asdict(self) | {
            "workloads": [
                [one.workload.key, one.baseline_us, [_whole(config) for config in one.configs]]
                for one in self.workloads
            ]
        }
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _whole(config: PastConfig) -> list[object]:
    return [config.config.key, config.status, config.time_us]


Row = Mapping[str, Any]
# Longer text is no config of ours, and not worth its parsing.
MOST_CHARACTERS = 20_000
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def search_of(row: Row, workloads: Iterable[PastWorkload]) -> PastSearch | None:
    """Read a search; None where the row makes no sense."""
    operators, parameters = _json(row["operators"]), _json(row["parameters"])
    if not isinstance(operators, dict) or not isinstance(parameters, list):
        return None
    if not all(isinstance(text, str) for text in (*operators.values(), *parameters)):
        return None
    return PastSearch(
        kernel=_text(row["kernel"]),
        operators=operators,
        device=_text(row["device"]),
        architecture=_text(row["architecture"]),
        candidate=_text(row["candidate"]),
        template_sha=_text(row["template_sha"]),
        parameters=tuple(parameters),
        tuner_version=_text(row["tuner_version"]),
        created=_text(row["created"]),
        state=_text(row["state"]),
        workloads=tuple(workloads),
    )


def workload_of(row: Row, configs: Iterable[PastConfig]) -> PastWorkload | None:
    """Read what was found on a workload; None where the row makes no sense."""
    axes = _pairs(row["axes"])
    if not axes or not all(type(size) is int and size > 0 for _, size in axes):
        return None
    sizes = tuple((name, int(size)) for name, size in axes)
    return PastWorkload(Workload(sizes), time_of(row["baseline_us"]), tuple(configs))


def config_of(row: Row) -> PastConfig | None:
    """Read a config; None where the row makes no sense, such as a time of 0."""
    values, time_us = _pairs(row["config"]), time_of(row["time_us"])
    if not values or row["status"] not in set(Status):
        return None
    status = Status(row["status"])
    if (status is Status.CORRECT) is (time_us is None):
        return None
    return PastConfig(Config.of(values), status, time_us)


def time_of(value: object) -> float | None:
    """Read a time in microseconds; None where it can be none."""
    if isinstance(value, int | float) and isfinite(value) and value > 0:
        return float(value)
    return None


def _pairs(text: object) -> tuple[tuple[str, Value], ...]:
    pairs = _json(text)
    if not isinstance(pairs, list):
        return ()
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            return ()
        if not isinstance(pair[1], bool | int | float | str):
            return ()
    return tuple((name, value) for name, value in pairs)


def _json(text: object) -> object:
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(value: object) -> str:
    """Keep what a terminal would take for a command out of what people are shown."""
    return _UNPRINTABLE.sub("?", str(value))


# Rows read at once: databases bound the names in one `in`.
_CHUNK = 500
# A store that was tampered with may hold any number.
MOST_CONFIGS = 64


def read_searches(connection: Connection, kernel: str | None, most: int) -> list[PastSearch]:
    """Read the newest `most` searches of a kernel, or of all, oldest first."""
    newest = select(searches).order_by(searches.c.created.desc(), searches.c.id.desc()).limit(most)
    if kernel is not None:
        newest = newest.where(searches.c.kernel == kernel)
    rows = _rows(connection, newest)[::-1]
    sizes = _grouped(connection, workloads, "search", [row["id"] for row in rows])
    numbers = [row["id"] for group in sizes.values() for row in group]
    tried = _grouped(connection, configs, "workload", numbers)
    made = (search_of(row, _workloads(sizes.get(row["id"], []), tried)) for row in rows)
    return [one for one in made if one is not None]


def _workloads(
    rows: list[Mapping[str, Any]], tried: Mapping[int, list[Mapping[str, Any]]]
) -> list[PastWorkload]:
    made = (workload_of(row, _configs(tried.get(row["id"], []))) for row in rows)
    return [one for one in made if one is not None]


def _configs(rows: list[Mapping[str, Any]]) -> list[PastConfig]:
    made = (config_of(row) for row in rows[:MOST_CONFIGS])
    return [one for one in made if one is not None]


def _grouped(
    connection: Connection, table: Table, column: str, numbers: list[int]
) -> dict[int, list[Mapping[str, Any]]]:
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for start in range(0, len(numbers), _CHUNK):
        chosen = table.c[column].in_(numbers[start : start + _CHUNK])
        for row in _rows(connection, select(table).where(chosen).order_by(table.c.id)):
            groups.setdefault(row[column], []).append(row)
    return groups


def _rows(connection: Connection, query: Select[Any]) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(query).mappings()]


def add_search(connection: Connection, found: PastSearch) -> bool:
    """Add a search with all it found; False where it is there already."""
    uid = found.uid
    if connection.execute(select(searches.c.id).where(searches.c.uid == uid)).first():
        return False
    row = {
        "uid": uid,
        "kernel": found.kernel,
        "operators": json.dumps(dict(found.operators), sort_keys=True),
        "device": found.device,
        "architecture": found.architecture,
        "candidate": found.candidate,
        "template_sha": found.template_sha,
        "parameters": json.dumps(found.parameters),
        "tuner_version": found.tuner_version,
        "created": found.created,
        "state": found.state,
    }
    search = _inserted(connection, searches, row)
    for one in found.workloads:
        axes = {"axes": json.dumps(one.workload.axes), "baseline_us": one.baseline_us}
        made = _inserted(connection, workloads, {"search": search, **axes})
        rows = [
            {
                "workload": made,
                "config": _pairs_text(config.config),
                "status": config.status.value,
                "time_us": config.time_us,
            }
            for config in one.configs
        ]
        if rows:
            connection.execute(insert(configs), rows)
    return True


def forget_searches(connection: Connection, kernel: str, device: str | None) -> int:
    """Delete the searches of a kernel, on all devices or one; return how many there were."""
    chosen = select(searches.c.id).where(searches.c.kernel == kernel)
    if device is not None:
        chosen = chosen.where(searches.c.device == device)
    of_workloads = select(workloads.c.id).where(workloads.c.search.in_(chosen))
    connection.execute(delete(configs).where(configs.c.workload.in_(of_workloads)))
    connection.execute(delete(workloads).where(workloads.c.search.in_(chosen)))
    # MySQL cannot delete from the table that it chooses by.
    numbers = list(connection.execute(chosen).scalars())
    connection.execute(delete(searches).where(searches.c.id.in_(numbers)))
    return len(numbers)


def _inserted(connection: Connection, table: Table, row: Mapping[str, object]) -> int:
    key = connection.execute(insert(table), dict(row)).inserted_primary_key
    assert key is not None
    return int(key[0])


def _pairs_text(values: Mapping[str, object]) -> str:
    return json.dumps(list(values.items()))


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of one kernel on one device.

    `speedup` is the largest over the baseline on any workload, None where no baseline is known;
    `last` is when the last run began (ISO 8601).
    """

    kernel: str
    operators: Mapping[str, str]
    device: str
    searches: int
    workloads: int
    configs: int
    speedup: float | None
    last: str


def summaries(known: Sequence[PastSearch]) -> list[Summary]:
    """Sum up each kernel, choice of operators and device, in the order of their names."""
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[PastSearch]] = {}
    for search in known:
        operators = tuple(sorted(search.operators.items()))
        groups.setdefault((search.kernel, search.device, operators), []).append(search)
    return [_summary(groups[group]) for group in sorted(groups)]


def _summary(group: Sequence[PastSearch]) -> Summary:
    found = [one for search in group for one in search.workloads]
    speedups = [speedup for one in found if (speedup := _speedup(one)) is not None]
    return Summary(
        kernel=group[0].kernel,
        operators=group[0].operators,
        device=group[0].device,
        searches=len(group),
        workloads=len({one.workload.key for one in found}),
        configs=len({config.config.key for one in found for config in one.configs}),
        speedup=max(speedups, default=None),
        last=max(search.created for search in group),
    )


def _speedup(past: PastWorkload) -> float | None:
    times = [config.time_us for config in past.configs if config.time_us is not None]
    return past.baseline_us / min(times) if past.baseline_us and times else None


ENVIRONMENT = "TUNE_STORE"
NONE = "none"
FILE_NAME = "knowledge.sqlite"
_REMEDY = (
    "name a file, a URL such as postgresql+psycopg://HOST/DATABASE "
    "(https://docs.sqlalchemy.org/core/engines.html), or `none`"
)


@dataclass(frozen=True, slots=True)
class Place:
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


def find_place(option: str | None, environment: Mapping[str, str]) -> Place | None:
    """Find the store of a run: the option's, else `TUNE_STORE`'s, else the user's own file.

    None where there is to be none. Raises `InputError` for text that names no database.
    """
    given = option if option is not None else environment.get(ENVIRONMENT)
    source = "--store" if option is not None else ENVIRONMENT
    if given is None:
        from platformdirs import user_data_path

        return Place(_file_url(user_data_path("kernel-tune") / FILE_NAME))
    if given.strip() == NONE:
        return None
    if not given.strip():
        raise InputError(f"{source} is empty", remedy=_REMEDY)
    explicit = option is not None
    if "://" in given:
        return Place(_url(given.strip(), source), explicit)
    return Place(_file_url(Path(given)), explicit)


def without_password(text: str) -> str:
    """Return what `--store` was given with the password of a URL starred out."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    if "://" not in text:
        return text
    try:
        return make_url(text).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return text.partition("://")[0] + "://..."


def _file_url(path: Path) -> URL:
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(path.expanduser().absolute()))


def _url(text: str, source: str) -> URL:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

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
