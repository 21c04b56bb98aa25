"""`tune` with a PostgreSQL server: a lost machine's session goes on elsewhere; refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable

import pytest

from tuner.session.session import Session

TUNE = ("kernels/scale.cu", "--device", "recorded", "--session", "mine", "--json")
# `tune`, which never ends: a recording answers faster than a test can look.
ENDLESS = """
import time
from tuner.cli import main
from tuner.tuning.finals import Finals
Finals.decide = lambda *_: time.sleep(600)
main()
"""


@pytest.fixture
def known(tune, postgres_url) -> Callable[[], list[dict]]:
    """List the sessions on the server."""

    def read() -> list[dict]:
        told = tune("session", "list", "--json", "--store", postgres_url)
        return json.loads(told.output)["sessions"]

    return read


def wait_for(process: subprocess.Popen[str], is_so: Callable[[], object]) -> None:
    ends_s = time.monotonic() + 120
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends_s
        time.sleep(0.05)


def test_what_a_run_finds_is_on_the_server_and_fetched_it_is_whole(
    project, tune, known, postgres_url
) -> None:
    done = tune(*TUNE, "--store", postgres_url, "--copy-session")
    assert done.exit_code == 0, done.output
    assert "Warning" not in done.output
    (one,) = known()
    assert (one["kernel"], one["state"], one["in_use"]) == ("scale", "complete", False)
    listed = tune("knowledge", "list", "--store", postgres_url).output
    assert "scale   NVIDIA H200  1" in listed
    assert "s3cret" not in listed + done.output
    fetched = tune("session", "fetch", one["id"], "again", "--store", postgres_url)
    assert fetched.output == f"fetched: {one['records']} records to again\n"
    assert tune("--resume", "again", "--json").exit_code == 0
    before, after = (project.root / name / "tuned" for name in ("mine", "again"))
    names = sorted(path.name for path in before.iterdir())
    assert names == sorted(path.name for path in after.iterdir())
    for name in names:
        assert (after / name).read_text() == (before / name).read_text()
    told = tune("session", "forget", one["id"], "--store", postgres_url)
    assert told.output.startswith(f"forgotten: {one['id']} in postgresql://owner:***@")
    assert known() == []


def test_a_lost_machines_session_goes_on_elsewhere(
    project, start, tune, known, postgres, postgres_url
) -> None:
    words = ("--store", postgres_url, "--copy-session")
    process = start(*TUNE, *words, program=("-c", ENDLESS))
    wait_for(process, lambda: any(one["records"] > 2 for one in known()))
    process.kill()
    process.wait()
    shutil.rmtree(project.root / "mine")
    (lost,) = known()
    assert (lost["state"], lost["in_use"]) == ("running", True)
    assert tune("session", "fetch", lost["id"], "again", "--store", postgres_url).exit_code == 0
    with Session.open(project.root / "again", read_only=True) as session:
        kept = session.records(stage=None)
    refused = tune("--resume", "again", "--json", *words)
    assert refused.exit_code == 2
    assert "is in use" in refused.output
    assert "60 s after its last word" in refused.output
    silent = "UPDATE tune_session SET heard = now() - interval '61 s'"
    postgres.execute(silent, database=postgres_url.rpartition("/")[2])
    assert tune("--resume", "again", "--json", *words).exit_code == 0
    with Session.open(project.root / "again", read_only=True) as session:
        assert session.records(stage=None)[: len(kept)] == kept
        assert len(session.results()) == 3
    (found,) = known()
    assert (found["id"], found["state"]) == (lost["id"], "complete")


@pytest.fixture(params=["wrong password", "no database", "no server", "read-only"])
def refused_store(request, postgres, postgres_url):
    """A store that cannot be used, what is said of it, and the remedy."""
    if request.param == "wrong password":
        yield postgres.url(password="another"), "password authentication failed", "~/.pgpass"  # noqa: S106
    elif request.param == "no database":
        yield postgres.url(database="nowhere"), 'database "nowhere" does not exist', "createdb"
    elif request.param == "no server":
        yield "postgresql://me:s3cret@127.0.0.1:9/tune", "cannot be reached", "server runs"
    elif request.param == "read-only":
        database = postgres_url.rpartition("/")[2]
        postgres.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        yield postgres_url, "read-only transaction", "GRANT"


def test_a_named_store_that_cannot_be_used_is_one_error_and_nothing_is_left(
    project, tune, refused_store
) -> None:
    url, said, remedy = refused_store
    refused = tune(*TUNE, "--store", url, "--copy-session")
    assert refused.exit_code == 2
    (error,) = [line for line in refused.output.splitlines() if line.startswith("Error: ")]
    assert said in error
    assert remedy in refused.output
    assert "Traceback" not in refused.output
    assert "s3cret" not in refused.output
    assert not (project.root / "mine").exists()
