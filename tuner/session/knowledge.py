"""What past runs found: one table of searches in a store, for a new run to ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from sqlalchemy import (
    Column,
    Connection,
    Identity,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
)

from tuner.model.bounds import Microseconds, Printable
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.session.database import NAME_ANOTHER, Database, StoreError, StoreLocation, insert_new
from tuner.session.records import adapter_of

# Raise it with every change that an older version could not read.
SCHEMA_VERSION = 1
metadata = MetaData()
# The prefix is for servers that hold other programs' tables.
searches = Table(
    "tune_knowledge",
    metadata,
    # As an identity it needs no right to a sequence.
    Column("id", Integer, Identity(), primary_key=True),
    Column("version", Integer, nullable=False, index=True),
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
    time_us: Microseconds | None = None


@dataclass(frozen=True, slots=True)
class PastWorkload:
    """What a search found on one workload: the fastest configs first, then some that failed."""

    workload: Workload
    baseline_us: Microseconds | None
    configs: tuple[PastConfig, ...]


@dataclass(frozen=True, slots=True)
class PastSearch:
    """The best of one candidate's search in one run.

    `architecture` is the compile target, `sm_90a`; `parameters` are sorted names; `created` is
    when the run began (ISO 8601), and `state` what it said of itself at its end.
    """

    kernel: Printable
    operators: Mapping[Printable, Printable]
    device: Printable
    architecture: Printable
    candidate: Printable
    template_sha: Printable
    parameters: tuple[Printable, ...]
    tuner_version: Printable
    created: Printable
    state: Printable
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
        search: PastSearch = adapter_of(PastSearch).validate_json(content, strict=True)
    except ValueError:
        return None
    for workload in search.workloads:
        if min((size for _, size in workload.workload.axes), default=0) < 1:
            return None
        for config in workload.configs:
            is_correct = config.status is Status.CORRECT
            if not config.config or is_correct != (config.time_us is not None):
                return None
    return search


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


def summaries(searches: Sequence[PastSearch]) -> list[KnowledgeSummary]:
    """Sum up each kernel, choice of operators and device, in the order of their names."""
    groups: dict[tuple[str, str, str], list[PastSearch]] = {}
    for search in searches:
        operators = json.dumps(dict(search.operators), sort_keys=True)
        groups.setdefault((search.kernel, search.device, operators), []).append(search)
    summed = []
    for (kernel, device, _), group in sorted(groups.items(), key=lambda item: item[0]):
        configs = [(w, config) for s in group for w in s.workloads for config in w.configs]
        speedups = [
            w.baseline_us / config.time_us
            for w, config in configs
            if w.baseline_us is not None and config.time_us is not None
        ]
        summary = KnowledgeSummary(
            kernel=kernel,
            operators=group[0].operators,
            device=device,
            searches=len(group),
            workloads=len({w.workload.key for s in group for w in s.workloads}),
            configs=len({config.config.key for _, config in configs}),
            speedup=max(speedups, default=None),
            last=max(search.created for search in group),
        )
        summed.append(summary)
    return summed


# Searches that are looked at, the newest: older ones say little that these don't.
MOST_SEARCHES = 200
# For those who want all of them.
ALL_SEARCHES = 1_000_000
# What a search is tried with that is not kept.
_PROBE = {
    "version": SCHEMA_VERSION,
    **dict.fromkeys(("uid", "kernel", "device", "created", "content"), "probe"),
}


class KnowledgeStore:
    """Add past searches to a database and ask for them; nothing is held open between calls.

    Every call raises `StoreError` where the database fails, and `InputError` where it is none of
    ours or cannot be reached; `instead` is what a user can do then. Nothing is made before
    something is added.
    """

    def __init__(self, location: StoreLocation, *, instead: str = NAME_ANOTHER) -> None:
        self.location = location
        self._database = Database(location, metadata, instead=instead)

    def check(self) -> None:
        with self._reading():
            pass

    def check_writing(self) -> None:
        """Raise `ReadOnlyError` where nothing may be added; nothing is."""
        self._database.try_writing(lambda connection: connection.execute(insert(searches), _PROBE))

    def add(self, past_searches: Sequence[PastSearch]) -> int:
        """Add searches that are not there yet; return how many were added."""
        rows = [
            {
                "version": SCHEMA_VERSION,
                "uid": search.uid,
                "kernel": search.kernel,
                "device": search.device,
                "created": search.created,
                "content": search.json,
            }
            for search in past_searches
        ]

        def work(connection: Connection) -> int:
            self._require_version(connection)
            return insert_new(connection, searches, rows)

        return self._database.write(work)

    def searches(self, kernel: str | None = None, *, most: int = MOST_SEARCHES) -> list[PastSearch]:
        """Read the newest searches of a kernel, or of all, oldest first; garbage is left out."""
        query = select(searches.c.content).limit(most)
        query = query.where(func.length(searches.c.content) <= MOST_CHARACTERS)
        query = query.order_by(searches.c.created.desc(), searches.c.id.desc())
        if kernel is not None:
            query = query.where(searches.c.kernel == kernel)
        with self._reading() as connection:
            rows = [] if connection is None else connection.execute(query).scalars().all()
        read = (_read_search(content) for content in reversed(rows))
        return [search for search in read if search is not None]

    def forget(self, kernel: str, device: str | None = None) -> int:
        """Delete what is known of a kernel, on all devices or one; return how many searches."""
        chosen = delete(searches).where(searches.c.kernel == kernel)
        if device is not None:
            chosen = chosen.where(searches.c.device == device)
        with self._reading() as connection:
            if connection is None:
                return 0
        return self._database.write(lambda connection: connection.execute(chosen).rowcount)

    @contextmanager
    def _reading(self) -> Iterator[Connection | None]:
        with self._database.reading() as connection:
            if connection is not None:
                self._require_version(connection)
            yield connection

    def _require_version(self, connection: Connection) -> None:
        other = select(searches.c.version).where(searches.c.version != SCHEMA_VERSION).limit(1)
        version = connection.execute(other).scalar()
        if version is not None:
            raise StoreError(
                f"{self.location}: has schema {version}, "
                f"this version of tune knows {SCHEMA_VERSION}",
                remedy="upgrade with `pip install --upgrade kernel-tune`, or name another store "
                "with --store",
            )
