"""How long 16 writers take for 10,000 trials on one PostgreSQL server, and whether all are there.

    python benchmarks/shared_store.py [--store postgresql://USER@HOST/DATABASE] [--writers N]

Without `--store` a server is started on a loopback port, with its defaults: each commit waits for
the disk. The tables must not be there yet.

- sessions: each writer records its share of the trials in a session, which is copied meanwhile;
- searches: as many past searches, each added by two writers, 25 a transaction.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/support")]

from environment import environment, require_clean, write_result  # noqa: E402
from manifests import manifest  # noqa: E402
from past_searches import past_search  # noqa: E402
from postgres_server import programs, running  # noqa: E402
from sqlalchemy import Engine, create_engine, func, select  # noqa: E402

from tuner.extensions.scale.session_copies import (  # noqa: E402
    SessionCopies,
    copying,
    records,
    sessions,
)
from tuner.model.config import Config  # noqa: E402
from tuner.model.kernel import Workload  # noqa: E402
from tuner.model.trial import INITIAL, Measurement, Status, Trial  # noqa: E402
from tuner.session.database import find_store  # noqa: E402
from tuner.session.knowledge import KnowledgeStore, searches  # noqa: E402
from tuner.session.session import Session  # noqa: E402
from tuner.session.store import SessionStore  # noqa: E402

TRIALS = 10_000
A_TRANSACTION = 25
WORKLOAD = Workload((("N", 1000),))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", metavar="URL")
    parser.add_argument("--writers", type=int, default=16)
    asked = parser.parse_args()
    require_clean()
    with served(asked.store) as url, tempfile.TemporaryDirectory() as folder:
        location = find_store(url, {})
        engine = create_engine(location.url)
        content = {
            "environment": environment(),
            "server": engine.connect().exec_driver_sql("SHOW server_version").scalar(),
            "writers": asked.writers,
            "sessions": measure_sessions(url, engine, Path(folder), asked.writers),
            "searches": measure_searches(url, engine, asked.writers),
        }
        engine.dispose()
    print(content["sessions"], content["searches"], sep="\n")
    write_result("shared_store", content)


@contextmanager
def served(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    folder = programs()
    if folder is None:
        raise SystemExit("there is no PostgreSQL: apt-get install postgresql, or name one: --store")
    with running(folder, durable=True) as server, server.database("tune") as made:
        yield made


def measure_sessions(url: str, engine: Engine, folder: Path, writers: int) -> dict[str, Any]:
    folders = [folder / f"session-{number}" for number in range(writers)]
    seconds = timed(write_session, [(url, one, TRIALS // writers) for one in folders])
    copies = SessionCopies(find_store(url, {}))
    equal = 0
    for one in folders:
        fetched = folder / "fetched" / one.name
        copies.fetch(identity_and_rows(one)[0], fetched)
        equal += identity_and_rows(fetched) == identity_and_rows(one)
    with engine.connect() as connection:
        trials = connection.execute(
            select(func.count()).select_from(records).where(records.c.kind == "trial")
        ).scalar_one()
        made = connection.execute(select(func.count()).select_from(sessions)).scalar_one()
    return {"trials": trials, "sessions": made, "fetched_equal": equal, "seconds": seconds}


def write_session(url: str, folder: Path, trials: int) -> None:
    asked = manifest(kernel="scale", command=("tune", folder.name))
    with (
        Session.create(folder, asked, {"device": "made up"}) as session,
        copying(folder, url, {}, fail),
    ):
        session.add_candidate(INITIAL, "template", "space")
        for number in range(trials):
            config, measurement = Config.of({"block": number}), Measurement((1.0, 2.0), 20, 4)
            session.record(
                Trial(INITIAL, WORKLOAD, config, Status.CORRECT, measurement=measurement)
            )
        session.mark("complete")


def identity_and_rows(folder: Path) -> tuple[str, list[tuple[int, str, str]]]:
    store = SessionStore.open(folder, read_only=True)
    try:
        return store.identity, store.rows(0, TRIALS)
    finally:
        store.close()


def measure_searches(url: str, engine: Engine, writers: int) -> dict[str, Any]:
    made = [past_search({32: 1.0 + number}) for number in range(TRIALS)]
    share = TRIALS // writers
    # The second half of each share is the first half of the next one's.
    twice = [*made, *made[:share]]
    shares = [twice[k * share : (k + 2) * share] for k in range(writers)]
    seconds = timed(add_searches, [(url, one) for one in shares])
    with engine.connect() as connection:
        uids = connection.execute(select(searches.c.uid)).scalars().all()
    missing = {one.uid for one in made} - set(uids)
    return {
        "searches": len(uids),
        "offered": sum(map(len, shares)),
        "missing": len(missing),
        "twice": len(uids) - len(set(uids)),
        "seconds": seconds,
    }


def add_searches(url: str, made: list) -> None:
    store = KnowledgeStore(find_store(url, {}))
    for first in range(0, len(made), A_TRANSACTION):
        store.add(made[first : first + A_TRANSACTION])


def timed(work: Callable[..., None], shares: list[tuple]) -> float:
    """Let a process for each share work, and return the seconds until the last has ended."""
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(len(shares) + 1)
    writers = [context.Process(target=at_once, args=(gate, work, share)) for share in shares]
    for writer in writers:
        writer.start()
    gate.wait()
    started_s = time.perf_counter()
    for writer in writers:
        writer.join()
    seconds = time.perf_counter() - started_s
    if any(writer.exitcode for writer in writers):
        raise SystemExit("a writer failed")
    return round(seconds, 2)


def at_once(gate, work: Callable[..., None], share: tuple) -> None:
    gate.wait()
    work(*share)


def fail(text: str) -> None:
    raise SystemExit(text)


if __name__ == "__main__":
    main()
