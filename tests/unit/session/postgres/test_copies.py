"""Copies of sessions on a real server: nothing lost, nothing twice, one writer, refetched whole."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hostile_sessions import DEEP
from manifests import manifest

from tuner.extensions.scale import session_copies
from tuner.extensions.scale.session_copies import (
    LeaseLostError,
    SessionCopier,
    SessionCopies,
    SessionCopy,
    copy_session,
    copying,
)
from tuner.model.config import Config
from tuner.model.errors import InputError, SessionError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.session.database import find_store
from tuner.session.session import Session
from tuner.session.store import SessionStore

WRITERS = 16
SMALL = Workload((("N", 1000),))


def trial(number: int) -> Trial:
    config = Config.of({"block": number})
    return Trial(
        INITIAL, SMALL, config, Status.CORRECT, measurement=Measurement((1.0, 1.5, 2.0), 20, 4)
    )


def new_session(folder: Path, trials: int = 0) -> Session:
    """Start a session whose identity goes by its folder's name."""
    asked = manifest(kernel="scale", command=("tune", folder.name))
    session = Session.create(folder, asked, {"device": "made up"})
    session.add_candidate(INITIAL, "template", "space")
    for number in range(trials):
        session.record(trial(number))
    return session


def records_of(folder: Path) -> list[tuple[int, str, str]]:
    store = SessionStore.open(folder, read_only=True)
    try:
        return store.rows(0, 1_000_000)
    finally:
        store.close()


def identity_of(folder: Path) -> str:
    store = SessionStore.open(folder, read_only=True)
    try:
        return store.identity
    finally:
        store.close()


@pytest.fixture
def copies(postgres_url) -> SessionCopies:
    return SessionCopies(find_store(postgres_url, {}))


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr(session_copies, "EVERY_S", 0.05)


def wait_until(is_so: Callable[[], object]) -> None:
    ends_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


@pytest.mark.usefixtures("quick")
def test_a_session_is_there_while_it_grows_and_fetched_it_is_the_same(
    copies, tmp_path, warnings
) -> None:
    folder, fetched = tmp_path / "mine", tmp_path / "fetched"
    with new_session(folder) as session, SessionCopier(folder, copies.location, warnings.append):
        assert copies.summaries() == [], "nothing was measured yet"
        for number in range(250):
            session.record(trial(number))
        wait_until(lambda: [one.records for one in copies.summaries()] == [251])
        (seen,) = copies.summaries()
        assert (seen.id, seen.kernel, seen.state) == (identity_of(folder), "scale", "running")
        assert seen.in_use
        assert seen.writer.endswith(f":{folder}")
        session.record(trial(250))
        session.add_time(12.5)
        session.mark("complete")
    assert warnings == []
    (seen,) = copies.summaries()
    assert (seen.state, seen.records, seen.in_use) == ("complete", 252, False)
    assert copies.fetch(seen.id, fetched) == 252
    assert records_of(fetched) == records_of(folder)
    assert identity_of(fetched) == identity_of(folder)
    with Session.open(folder) as before, Session.open(fetched) as after:
        assert after.manifest == before.manifest
        assert after.environment == before.environment
        assert (after.state, after.seconds) == ("complete", before.seconds)
        assert after.records() == before.records()


def test_a_session_without_a_measurement_leaves_nothing(copies, tmp_path, warnings) -> None:
    folder = tmp_path / "mine"
    with new_session(folder), SessionCopier(folder, copies.location, warnings.append):
        pass
    assert copies.summaries() == []
    assert warnings == []
    with pytest.raises(SessionError, match="nothing was measured yet"):
        copy_session(folder, copies.location)


def test_what_a_copy_lacks_is_sent_and_sending_again_changes_nothing(
    copies, tmp_path, postgres
) -> None:
    folder = tmp_path / "mine"
    new_session(folder, 5).close()
    name = copy_session(folder, copies.location)
    with Session.open(folder) as session:
        session.record(trial(5))
    assert copy_session(folder, copies.location) == copy_session(folder, copies.location) == name
    copies.fetch(name, tmp_path / "fetched")
    assert records_of(tmp_path / "fetched") == records_of(folder)


def write_session(postgres_url: str, folder: Path, trials: int, gate) -> None:
    warnings: list[str] = []
    gate.wait()
    with (
        new_session(folder) as session,
        copying(folder, postgres_url, {}, warnings.append),
    ):
        for number in range(trials):
            session.record(trial(number))
        session.mark("complete")
    assert warnings == []


@pytest.mark.parametrize("trials", [20, pytest.param(625, marks=pytest.mark.slow)])
def test_of_16_sessions_written_at_once_nothing_is_lost_and_nothing_is_there_twice(
    postgres_url, copies, tmp_path, trials
) -> None:
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(WRITERS)
    folders = [tmp_path / f"session-{number}" for number in range(WRITERS)]
    writers = [
        context.Process(target=write_session, args=(postgres_url, folder, trials, gate))
        for folder in folders
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    assert {one.records for one in copies.summaries()} == {trials + 1}
    for folder in folders:
        fetched = tmp_path / "fetched" / folder.name
        copies.fetch(identity_of(folder), fetched)
        assert records_of(fetched) == records_of(folder)


@pytest.mark.usefixtures("quick")
def test_a_restart_in_the_middle_is_told_once_and_made_up_for(
    copies, tmp_path, warnings, postgres
) -> None:
    folder = tmp_path / "mine"
    with new_session(folder) as session, SessionCopier(folder, copies.location, warnings.append):
        session.record(trial(0))
        wait_until(copies.summaries)
        postgres.stop()
        try:
            session.record(trial(1))
            wait_until(lambda: warnings)
            for number in range(2, 50):
                session.record(trial(number))
        finally:
            postgres.start()
    (warning,) = warnings
    assert warning.startswith("the session is not copied for now: ")
    copies.fetch(identity_of(folder), tmp_path / "fetched")
    assert records_of(tmp_path / "fetched") == records_of(folder)


@pytest.mark.usefixtures("quick")
def test_a_server_that_stays_away_costs_the_copy_and_says_what_sends_it_later(
    copies, tmp_path, warnings, postgres, monkeypatch
) -> None:
    monkeypatch.setattr(session_copies, "FLUSH_S", 0.2)
    folder = tmp_path / "mine"
    with new_session(folder) as session, SessionCopier(folder, copies.location, warnings.append):
        session.record(trial(0))
        wait_until(copies.summaries)
        postgres.stop()
        session.record(trial(1))
    postgres.start()
    first, last = warnings
    assert "not copied for now" in first
    assert last.startswith("the last records are not in the session's copy: ")
    assert f"`tune session copy {folder}`" in last
    assert "s3cret" not in "".join(warnings)
    copy_session(folder, copies.location)
    assert [one.records for one in copies.summaries()] == [3]


def opened(stack: ExitStack, folder: Path, copies: SessionCopies) -> SessionCopy:
    local = SessionStore.open(folder, read_only=True)
    stack.callback(local.close)
    copy = SessionCopy(copies.location, local)
    stack.callback(copy.close)
    return copy


def test_one_process_writes_a_copy_until_it_is_silent(
    copies, tmp_path, postgres, monkeypatch
) -> None:
    folder, other = tmp_path / "mine", tmp_path / "other"
    new_session(folder, 3).close()
    with ExitStack() as stack:
        first = opened(stack, folder, copies)
        first.begin()
        copies.fetch(identity_of(folder), other)
        second = opened(stack, other, copies)
        with pytest.raises(SessionError, match="is in use: ") as caught:
            second.begin()
        assert f":{folder} writes it" in caught.value.message
        assert "60 s after its last word" in caught.value.remedy
        with pytest.raises(SessionError, match="is in use: "):
            copies.forget(identity_of(folder))
        name = copies.location.url.database
        postgres.execute("UPDATE tune_session SET heard = now() - interval '61 s'", database=name)
        second.begin()
        with Session.open(folder) as session:
            session.record(trial(3))
        with pytest.raises(session_copies.LeaseLostError, match="taken over"):
            first.send()
        with Session.open(other) as session:
            session.record(trial(4))
        second.send()
        second.release()
        with pytest.raises(SessionError, match="the copy has another record 5") as caught:
            opened(stack, folder, copies).begin()
        assert "tune session fetch" in caught.value.remedy
    copies.forget(identity_of(folder))
    assert copies.summaries() == []


def test_the_same_folder_goes_on_at_once_after_a_kill(copies, tmp_path) -> None:
    folder = tmp_path / "mine"
    new_session(folder, 3).close()
    with ExitStack() as stack:
        opened(stack, folder, copies).begin()
        again = opened(stack, folder, copies)
        again.begin()
        again.release()


def test_a_folder_that_lost_its_end_is_told_to_take_the_copy(copies, tmp_path) -> None:
    folder = tmp_path / "mine"
    with new_session(folder, 3):
        pass
    copy_session(folder, copies.location)
    store = SessionStore.open(folder, read_only=False)
    store._raw.execute("DELETE FROM records WHERE id = 4")
    store._raw.commit()
    store.close()
    with pytest.raises(SessionError, match="or one that the folder lacks"):
        copy_session(folder, copies.location)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE tune_session SET manifest = '{'", "is damaged"),
        ("UPDATE tune_session SET environment = '[]'", "is damaged"),
        ("UPDATE tune_session SET version = 99", "has schema 99"),
        ("DELETE FROM tune_session_record WHERE number = 2", "record 2 is missing"),
        ("UPDATE tune_session_record SET kind = 'x' WHERE number = 2", "unknown kind 'x'"),
        ("UPDATE tune_session_record SET content = '[' WHERE number = 2", "is none"),
        (
            "UPDATE tune_session_record SET content = (SELECT content FROM tune_session_record "
            "WHERE number = 2) WHERE number = 3",
            "is there twice",
        ),
        ("UPDATE tune_session SET seconds = 'NaN'", "is damaged"),
        (f"UPDATE tune_session SET manifest = '{DEEP}'", "is damaged"),  # noqa: S608
        ("ALTER TABLE tune_session ALTER state TYPE bytea USING 'x'", "is damaged"),
        ("UPDATE tune_session SET manifest = repeat('x', 70000000)", "a header of over"),
        ("UPDATE tune_session SET writer = repeat('x', 70000000)", "a header of over"),
        ("UPDATE tune_session_record SET content = repeat('x', 70000000)", "a record of over"),
        (f"UPDATE tune_session_record SET content = '{DEEP}'", "is none"),  # noqa: S608
        ("UPDATE tune_session_record SET number = -2 WHERE number = 2", "record 1 is missing"),
        ("ALTER TABLE tune_session_record ALTER kind TYPE int USING 3", "unknown kind '3'"),
        ("ALTER TABLE tune_session_record ALTER number TYPE text", "record 1 is missing"),
        ("ALTER TABLE tune_session_record ALTER content TYPE bytea USING 'x'", "no text"),
    ],
)
def test_a_copy_that_tune_did_not_write_is_refused_and_leaves_nothing(
    copies, tmp_path, postgres, statement, said
) -> None:
    folder, fetched = tmp_path / "mine", tmp_path / "fetched"
    new_session(folder, 3).close()
    name = copy_session(folder, copies.location)
    postgres.execute(statement, database=copies.location.url.database)
    with pytest.raises(SessionError, match=said):
        copies.fetch(name, fetched)
    assert not list(fetched.glob("*"))


def test_of_a_long_name_some_is_shown(copies, tmp_path, postgres) -> None:
    folder = tmp_path / "mine"
    new_session(folder, 1).close()
    copy_session(folder, copies.location)
    statement = "UPDATE tune_session SET kernel = repeat('x', 70000000)"
    postgres.execute(statement, database=copies.location.url.database)
    assert len(copies.summaries()[0].kernel) == 200


def test_what_is_not_there_is_told(copies, tmp_path) -> None:
    for use in (lambda: copies.fetch("none", tmp_path / "x"), lambda: copies.forget("none")):
        with pytest.raises(InputError, match="there is no session 'none'") as caught:
            use()
        assert "tune session list" in caught.value.remedy
    assert not (tmp_path / "x").exists()


def test_a_folder_with_a_session_is_left_alone(copies, tmp_path) -> None:
    folder = tmp_path / "mine"
    new_session(folder, 3).close()
    name, before = copy_session(folder, copies.location), records_of(folder)
    with pytest.raises(SessionError, match="already holds a session"):
        copies.fetch(name, folder)
    assert records_of(folder) == before


@pytest.mark.parametrize("option", ["none", "{}/file.db"])
def test_a_copy_needs_a_server(tmp_path, option, warnings) -> None:
    with pytest.raises(InputError, match="sessions are copied to servers only"):
        copying(tmp_path, option.format(tmp_path), {}, warnings.append)


def test_a_server_that_may_not_be_written_is_told_before_a_run(
    copies, tmp_path, postgres, warnings
) -> None:
    name = copies.location.url.database
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    folder, before = tmp_path / "mine", threading.active_count()
    with new_session(folder), pytest.raises(InputError, match="read-only transaction"):
        SessionCopier(folder, copies.location, warnings.append).__enter__()
    assert warnings == []
    assert threading.active_count() <= before + 1


@pytest.mark.usefixtures("quick")
def test_a_copy_that_somebody_takes_over_as_the_run_ends_is_told_of_once(
    tmp_path, warnings, monkeypatch
) -> None:
    class TakenOver:
        def send(self) -> None:
            raise LeaseLostError("another process has taken over the session")

        def release(self) -> None: ...

    monkeypatch.setattr(session_copies, "FLUSH_S", 0.5)
    location = find_store("postgresql://somebody@nowhere/tune", {})
    copying_it = SessionCopier(tmp_path, location, warnings.append)
    copying_it._ending.set()
    copying_it._follow(TakenOver())
    (told,) = warnings
    assert told.endswith("not copied any more: another process has taken over the session")
