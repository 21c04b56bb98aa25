"""A session that somebody else wrote: one message and a documented exit code, whatever is in it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import faults
import pytest
from click.testing import CliRunner, Result
from hostile_sessions import FILE_EDITS, LINKS, SCHEMA_EDITS, VALUE_EDITS, Edit, header
from slow import mostly_slow

from tuner.cli import cli
from tuner.model.errors import SessionError
from tuner.session.session import Session

EXPORTS = (("--to", "out"), ("--kernel-tuner", "files"), ("--trajectories", "rounds.jsonl"))
READING = (("report", "mine"), *(("export", "mine", *words) for words in EXPORTS))
RUNNING = (
    ("--resume", "mine", "--quiet", "--trust"),
    ("verify", "mine", "--device", "host", "--trust"),
)
# What no run writes and nobody is hurt by.
HARMLESS = {
    *("a negative id", "an unknown searcher", "an unknown device", "a moment that is none"),
    *("negative trials", "a search space that is a folder", "a search space that is a device"),
    *(
        "no workloads",
        "a recording that is a device",
        "a path with NUL",
        "a candidate that nobody wrote",
    ),
    *("a result of an unknown workload", "a result of a config that is none"),
}
# SQLite takes it back where it may write.
REPAIRED = "a journal that is none"
DOCUMENTED = {0, 2, 3, 4}


def tune(*words: str) -> Result:
    return CliRunner().invoke(cli, words, prog_name="tune")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with a session of it, for copies."""
    root = faults.written(tmp_path_factory.mktemp("hostile") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        words = (*faults.ON_HOST, "--trials", "3", "--quiet")
        done = tune("scale.cu", *words, "--searcher", "random", "--session", "mine")
        assert done.exit_code == 0, done.output
        yield root


@pytest.fixture
def session(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(template / "mine", "mine")).absolute()


def assert_one_message(result: Result) -> None:
    told = (result.output, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), told
    assert result.exit_code in DOCUMENTED, told
    errors = re.findall("^Error: ", result.stderr, re.MULTILINE)
    assert len(errors) == (result.exit_code in (2, 4)), told
    assert "Traceback" not in result.output
    assert "\x1b" not in result.output


def outside(session: Path) -> dict[str, str]:
    folder = session.parent / "outside"
    return {one.name: one.read_text("utf-8", "replace") for one in folder.glob("**/*")}


def refusal(session: Path, edit: Edit) -> str:
    """Make an edit and try every command; return the message of `tune report`, "" for none."""
    edit(session)
    before = outside(session)
    report, *exports = (tune(*words) for words in READING)
    for result in (report, *exports):
        assert_one_message(result)
    if report.exit_code == 0:
        for words in RUNNING:
            assert_one_message(tune(*words))
    elif edit is not FILE_EDITS[REPAIRED]:
        assert [result.exit_code for result in exports] == [2] * len(exports)
        # All commands open a session by this.
        for read_only in (False, True):
            with pytest.raises(SessionError):
                Session.open(session, read_only=read_only)
    assert outside(session) == before
    assert {one.name for one in session.parent.iterdir()} <= {
        *("mine", "outside", "out", "files", "rounds.jsonl")
    }
    return report.stderr


def test_a_session_that_nobody_edited_is_taken_by_every_command(session: Path) -> None:
    assert not refusal(session, lambda _: None)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("edit", SCHEMA_EDITS.values(), ids=SCHEMA_EDITS)
def test_a_schema_that_is_not_ours_is_refused(session: Path, edit: Edit) -> None:
    assert "mine/session.db: " in refusal(session, edit)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("edit", FILE_EDITS.values(), ids=FILE_EDITS)
def test_a_damaged_file_is_one_message(session: Path, edit: Edit) -> None:
    told = refusal(session, edit)
    assert not told or "mine/session.db: " in told


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", mostly_slow(VALUE_EDITS, list(VALUE_EDITS)[::4]))
def test_what_no_run_writes_is_refused_or_does_no_harm(session: Path, name: str) -> None:
    told = refusal(session, VALUE_EDITS[name])
    assert "mine/session.db: the database is damaged: " in told or name in HARMLESS, told


@pytest.mark.timeout(120)
@pytest.mark.parametrize("edit", LINKS.values(), ids=LINKS)
def test_a_link_or_a_pipe_in_the_folder_is_refused(session: Path, edit: Edit) -> None:
    assert "Error: mine" in refusal(session, edit)


@pytest.mark.parametrize("name", ["scale.py", "scale.cu", "scale.cu.j2", "scale.yaml"])
def test_a_file_of_it_that_is_none_any_more_is_one_message(
    template: Path, session: Path, name: str
) -> None:
    project = session.parent / "project"
    shutil.copytree(template, project, ignore=shutil.ignore_patterns("mine"))
    header("manifest", lambda made: made["config"].update(_moved(made["config"], project)))(session)
    (project / name).unlink()
    os.mkfifo(project / name)
    report, *others = READING
    assert tune(*report).exit_code == 0
    for words in (*others, *RUNNING):
        result = tune(*words)
        assert_one_message(result)
        assert result.exit_code == 2


def _moved(config: dict[str, str], project: Path) -> dict[str, str]:
    return {key: str(project / Path(config[key]).name) for key in ("space", "template")}


def test_a_score_without_a_place_is_one_message(template: Path, session: Path) -> None:
    os.mkfifo(session / "mutation.json")
    assert_one_message(report := tune("report", "mine"))
    assert "mine/mutation.json: cannot be read: not a regular file" in report.stderr
    space = str(template / "scale.yaml")
    result = tune("mutate", space, "--limit", "1", "--session", "mine")
    assert_one_message(result)
    assert "mine/mutation.json: the score cannot be written: not a regular file" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555])
def test_a_folder_without_rights_is_one_message(session: Path, mode: int) -> None:
    session.chmod(mode)
    try:
        for words in (*READING, *RUNNING):
            assert_one_message(tune(*words))
    finally:
        session.chmod(0o755)
