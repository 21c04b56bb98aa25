"""What past runs know, on a real server: many writers, a restart, and all that it may refuse."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from faults import build_disk_full
from past_searches import past_search
from postgres_server import running
from slow import mostly_slow

from tests.support.simulated_device import H200_LIKE
from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.session.database import ReadOnlyError, StoreError, find_store
from tuner.session.knowledge import ALL_SEARCHES, KnowledgeStore
from tuner.tuning.warm_start import Knowledge

WRITERS = 16


def store_at(url: str) -> KnowledgeStore:
    return KnowledgeStore(find_store(url, {}))


def database_of(url: str) -> str:
    return url.rpartition("/")[2]


def searches(first: int, count: int) -> list:
    return [past_search({32: 1.0 + number}) for number in range(first, first + count)]


def test_what_is_added_comes_back_and_is_kept_once(postgres_url) -> None:
    store = store_at(postgres_url)
    assert store.searches() == []
    assert store.forget("scale") == 0
    made = searches(0, 3)
    assert store.add(made) == 3
    assert store.add([*made, made[0]]) == 0
    assert store.searches("scale") == made
    assert store.searches("scale", most=1) == made[-1:]
    assert store.forget("scale") == 3
    assert store.searches() == []


def test_asking_and_checking_make_no_table(postgres_url, postgres) -> None:
    store = store_at(postgres_url)
    store.check()
    store.check_writing()
    name = database_of(postgres_url)
    tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'tune%'"
    assert postgres.execute(tables, database=name) == [(0,)]


def add_each(url: str, made: list, gate) -> None:
    store = store_at(url)
    gate.wait()
    for one in made:
        store.add([one])


def write_at_once(url: str, shares: list[list]) -> None:
    """Let a process for each share write it, one search a transaction."""
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(len(shares))
    writers = [context.Process(target=add_each, args=(url, share, gate)) for share in shares]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * len(writers)


@pytest.mark.parametrize("each", mostly_slow([3, 20, 40], sample=[20]))
def test_of_16_first_users_nothing_is_lost_and_nothing_is_there_twice(
    postgres_url, postgres, each
) -> None:
    made = searches(0, WRITERS * each)
    # Each search is written by two of them.
    shares = [made[k * each : (k + 2) * each] for k in range(WRITERS - 1)]
    write_at_once(postgres_url, [*shares, [*made[-each:], *made[:each]]])
    rows = postgres.execute("SELECT uid FROM tune_knowledge", database=database_of(postgres_url))
    assert sorted(uid for (uid,) in rows) == sorted(one.uid for one in made)


def test_searches_in_another_order_do_not_lock_each_other_out(postgres_url) -> None:
    made = searches(0, 40)
    store_at(postgres_url).add(searches(100, 1))
    errors: list[InputError] = []

    def add(some: list) -> None:
        try:
            store_at(postgres_url).add(some)
        except InputError as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(made[:: 1 - 2 * (k % 2)],)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store_at(postgres_url).searches(most=ALL_SEARCHES)) == 41


def test_a_server_that_is_restarted_is_waited_for(postgres_url, postgres) -> None:
    store, made = store_at(postgres_url), searches(0, 60)
    store.add(made[:1])
    ended = threading.Event()

    def write() -> None:
        for one in made:
            store.add([one])
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    postgres.stop()
    time.sleep(0.5)
    postgres.start()
    thread.join()
    assert ended.is_set()
    assert store.searches(most=ALL_SEARCHES) == made


def test_one_that_stays_away_is_given_up_with_the_reason(
    postgres_url, postgres, monkeypatch
) -> None:
    monkeypatch.setattr("tuner.session.database.RESTART_S", 0.5)
    store = store_at(postgres_url)
    store.add(searches(0, 1))
    postgres.stop()
    try:
        with pytest.raises(InputError, match=r"cannot be reached: .*(refused|closed)") as caught:
            store.add(searches(1, 1))
    finally:
        postgres.start()
    assert "see that the server runs" in caught.value.remedy
    assert store.add(searches(1, 1)) == 1


@pytest.mark.parametrize(
    ("changes", "reason", "remedy"),
    [
        ({"password": "wrong-one"}, "password authentication failed", "~/.pgpass or PGPASSWORD"),
        ({"user": "nobody"}, "password authentication failed", "~/.pgpass or PGPASSWORD"),
        ({"database": "nowhere"}, 'database "nowhere" does not exist', "createdb"),
    ],
)
def test_who_is_not_let_in_is_told_why_at_once(postgres, changes, reason, remedy) -> None:
    store = store_at(postgres.url(**changes))
    started_s = time.monotonic()
    with pytest.raises(InputError) as caught:
        store.check()
    assert time.monotonic() - started_s < 20
    assert "cannot be reached: " in caught.value.message
    assert reason in caught.value.message
    assert remedy in caught.value.remedy
    assert not isinstance(caught.value, StoreError)
    for secret in ("s3cret", "wrong-one"):
        assert secret not in str(caught.value)


def test_a_password_in_the_query_is_not_shown_either(postgres) -> None:
    text = f"postgresql://owner@127.0.0.1:{postgres.port}/nowhere?password=s3cret-of-the-owner"
    place = find_store(text, {})
    assert "s3cret" not in str(place)
    with pytest.raises(InputError, match="does not exist") as caught:
        KnowledgeStore(place).check()
    assert "s3cret" not in str(caught.value)


def test_a_word_that_libpq_does_not_know_is_told(postgres) -> None:
    store = store_at(f"{postgres.url()}?sslmod=require")
    with pytest.raises(InputError, match='invalid connection option "sslmod"') as caught:
        store.check()
    assert not isinstance(caught.value, StoreError)


def test_an_address_that_does_not_answer_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr("tuner.session.database.CONNECT_S", 2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place = f"postgresql://me:s3cret@127.0.0.1:{silent.getsockname()[1]}/tune"
        with pytest.raises(InputError, match="cannot be reached") as caught:
            store_at(place).check()
    assert "s3cret" not in str(caught.value)


def test_without_its_driver_there_is_one_error(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InputError, match="the driver of PostgreSQL cannot be used") as caught:
        find_store("postgresql://me:s3cret@host/tune", {})
    assert caught.value.remedy == "pip install -e '.[postgresql]' in the checkout"
    assert "s3cret" not in str(caught.value)


@pytest.fixture
def reader(postgres, postgres_url):
    """A user who may read what is there, and nothing else."""
    name = database_of(postgres_url)
    postgres.execute(
        "CREATE ROLE reader LOGIN PASSWORD 'r'",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO reader",
        database=name,
    )
    yield postgres.url(user="reader", password="r", database=name)  # noqa: S106
    postgres.execute("DROP OWNED BY reader", "DROP ROLE reader", database=name)


@pytest.mark.parametrize("is_new", [True, False])
def test_who_may_only_read_reads_and_is_told_before_a_run(postgres_url, reader, is_new) -> None:
    made = [] if is_new else searches(0, 2)
    if made:
        store_at(postgres_url).add(made)
    store = store_at(reader)
    store.check()
    assert store.searches() == made
    for write in (store.check_writing, lambda: store.add(searches(2, 1))):
        with pytest.raises(ReadOnlyError, match="permission denied") as caught:
            write()
        assert "GRANT" in caught.value.remedy


def test_a_run_with_a_store_for_reading_reads_and_says_what_was_not_added(
    postgres_url, reader, make_plan, make_session
) -> None:
    store_at(postgres_url).add(searches(0, 2))
    warnings: list[str] = []
    store = KnowledgeStore(find_store(None, {"TUNE_STORE": reader}))
    knowledge, plan = Knowledge(store, H200_LIKE, warnings.append), make_plan()
    knowledge.check()
    assert warnings == []
    with make_session(plan) as session:
        session.environment = {"device": H200_LIKE.name, "architecture": H200_LIKE.architecture}
        session.add_candidate(INITIAL, plan.template.text, "space")
        config = Config.of({"block": 32, "items": 1})
        workload, measurement = Workload((("N", 1000),)), Measurement((1.0, 1.0, 1.0), 20, 4)
        session.record(Trial(INITIAL, workload, config, Status.CORRECT, measurement=measurement))
        assert knowledge.keep(session) == 0
    (warning,) = warnings
    assert warning.startswith("what this run found is not in the store of past runs: ")
    assert "permission denied" in warning


def test_who_may_insert_needs_no_more(postgres_url, postgres, reader) -> None:
    store_at(postgres_url).add(searches(0, 1))
    postgres.execute("GRANT INSERT ON tune_knowledge TO reader", database=database_of(postgres_url))
    store = store_at(reader)
    store.check_writing()
    assert store.add(searches(0, 2)) == 1


def test_a_server_that_is_read_only_is_told(postgres_url, postgres) -> None:
    store_at(postgres_url).add(searches(0, 1))
    name = database_of(postgres_url)
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(ReadOnlyError, match="read-only transaction"):
        store_at(postgres_url).check_writing()
    assert len(store_at(postgres_url).searches()) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_full_disk_is_told_and_costs_only_what_does_not_fit(postgres, tmp_path: Path) -> None:
    library = build_disk_full(tmp_path, shutil.which("g++") or "")
    with running(postgres.programs) as small:
        small.add_small_disk(library, after_bytes=300_000)
        store = store_at(small.url())
        first = searches(0, 1)
        assert store.add(first) == 1
        # What cannot be compressed.
        large = past_search({32: 1.0}, state=random.Random(0).randbytes(250_000).hex())  # noqa: S311
        with pytest.raises(StoreError, match="No space left on device") as caught:
            store.add([large])
        assert not isinstance(caught.value, ReadOnlyError)
        assert "disk is not full" in caught.value.remedy
        assert store.add(searches(1, 1)) == 1
        assert store.searches() == searches(0, 2)


ROOT = Path(__file__).parents[4]


def test_the_pages_figures_are_what_was_measured() -> None:
    page = (ROOT / "docs/knowledge.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks/results/cpu/shared_store.json").read_text())
    copied, added = found["sessions"], found["searches"]
    assert (found["writers"], copied["sessions"], copied["fetched_equal"]) == (16, 16, 16)
    trials, lost = copied["trials"], 10_000 - copied["trials"]
    assert f"| {trials:,} trials | {trials:,} | {lost} | 0 | {copied['seconds']:.0f} |" in page
    kept = f"| {added['searches']:,} | {added['missing']} | {added['twice']} |"
    assert f"| {added['offered']:,} {kept} {added['seconds']:.0f} |" in page
    assert f"PostgreSQL {found['server'].partition('.')[0]}," in page
