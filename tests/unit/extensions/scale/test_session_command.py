"""`tune session`: list, fetch, copy, forget."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from manifests import manifest

from tuner.extensions.scale.session_command import command
from tuner.model.config import Config
from tuner.model.errors import InputError, SessionError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.session.session import Session


def session_command(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session with one trial."""
    with Session.create(tmp_path / "mine", manifest(kernel="scale"), {}) as session:
        session.add_candidate(INITIAL, "template", "space")
        measurement = Measurement((1.0, 1.5, 2.0), 20, 4)
        config, workload = Config.of({"block": 64}), Workload((("N", 1000),))
        session.record(Trial(INITIAL, workload, config, Status.CORRECT, measurement=measurement))
    return tmp_path / "mine"


def test_a_session_is_copied_listed_fetched_and_forgotten(folder, tmp_path, postgres_url) -> None:
    shown = postgres_url.replace("s3cret-of-the-owner", "***")
    store = ("--store", postgres_url)
    empty = session_command("list", *store).output.splitlines()
    assert empty == [f"store {shown}", "no session is there yet"]
    copied = session_command("copy", folder, *store).output
    name = copied.split()[3]
    assert copied == f"copied: {folder} as {name} to {shown}\n"
    _, titles, row = session_command("list", *store).output.splitlines()
    assert titles.split("  ")[0] == "id"
    assert row.startswith(f"{name}  scale   running  2        20")
    assert row.endswith(f":{folder}")
    again = tmp_path / "again"
    fetched = session_command("fetch", name, again, *store).output
    assert fetched == f"fetched: 2 records to {again}\n"
    assert session_command("forget", name, *store).output == f"forgotten: {name} in {shown}\n"
    with pytest.raises(InputError, match="there is no session"):
        session_command("forget", name, *store)


def test_a_session_that_cannot_be_sent_keeps_no_other_one_back(
    folder, tmp_path, postgres_url
) -> None:
    store = ("--store", postgres_url)
    with pytest.raises(SessionError, match="no such session"):
        session_command("copy", tmp_path / "gone", folder, *store)
    listed = session_command("list", *store).output
    assert "scale" in listed
    with pytest.raises(SessionError, match=r"(?s)2 of 3 were not copied.*gone.*neither"):
        session_command("copy", tmp_path / "gone", folder, tmp_path / "neither", *store)


def test_a_folder_in_use_is_told_with_what_fetch_takes(folder, postgres_url) -> None:
    copied = session_command("copy", folder, "--store", postgres_url).output
    with pytest.raises(SessionError) as told:
        session_command("fetch", copied.split()[3], folder, "--store", postgres_url)
    assert "name another folder" in str(told.value)
    assert "--session" not in str(told.value)


def test_text_that_would_command_a_terminal_is_spelt_out(folder, postgres, postgres_url) -> None:
    session_command("copy", folder, "--store", postgres_url)
    hostile = r"UPDATE tune_session SET kernel = E'\x1b[2J', writer = E'a\nb'"
    postgres.execute(hostile, database=postgres_url.rpartition("/")[2])
    output = session_command("list", "--store", postgres_url).output
    assert r"'\x1b[2J'" in output
    assert r"'a\nb'" in output
    assert "\x1b" not in output


@pytest.mark.parametrize("words", [("list",), ("fetch", "x", "y"), ("copy", "z"), ("forget", "x")])
def test_each_needs_a_server(tmp_path, words) -> None:
    for store in ("none", tmp_path / "x.db"):
        with pytest.raises(InputError, match="sessions are copied to servers only"):
            session_command(*words, "--store", store)


@pytest.mark.parametrize("words", [("list",), ("fetch", "x", "y"), ("copy",), ("forget", "x")])
def test_a_server_that_does_not_answer_is_told_with_what_these_commands_take(folder, words) -> None:
    pytest.importorskip("psycopg")
    words += (folder,) if words == ("copy",) else ()
    with pytest.raises(InputError, match="cannot be reached") as told:
        session_command(*words, "--store", "postgresql://me:s3cret@127.0.0.1:9/tune")
    assert told.value.remedy == (
        "see that the server runs and lets you in, or name another with --store"
    )


def test_what_is_no_session_is_refused(tmp_path, postgres_url) -> None:
    with pytest.raises(SessionError, match="no such session"):
        session_command("copy", tmp_path / "nowhere", "--store", postgres_url)
