"""A reference is Python: that of a stranger's session runs only once its user has said so."""

from __future__ import annotations

import py_compile
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import faults
import pytest
from click.testing import CliRunner, Result

import tuner
from tuner.cli import cli, options
from tuner.device.verify import reference_process
from tuner.model.errors import SessionError

Tune = Callable[..., Result]
NEW = (*faults.ON_HOST, "--trials", "1", "--searcher", "random")
RESUME, VERIFY = ("--resume", "mine", "--quiet"), ("verify", "mine", "--device", "host")
MARKER = """
from pathlib import Path

with Path(__file__).with_name("ran").open("a") as file:
    file.write("x")
"""


def run(*words: str, answer: str = "") -> Result:
    return CliRunner().invoke(cli, words, prog_name="tune", input=answer)


def written(root: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write a project whose reference tells that it ran, and go there; nothing is trusted yet."""
    faults.written(root)
    path = root / "scale.py"
    path.write_text(path.read_text() + MARKER)
    patch.chdir(root)
    patch.setenv("XDG_STATE_HOME", str(root.with_name("state")))
    return root


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Run `tune` in such a project."""
    written(tmp_path / "project", monkeypatch)
    return run


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a project with a session, which was made at the path `project` beside it."""
    with pytest.MonkeyPatch.context() as patch:
        root = written(tmp_path_factory.mktemp("stranger") / "project", patch)
        assert run("scale.cu", *NEW, "--quiet", "--session", "mine").exit_code == 0
    (root / "ran").unlink()
    return root.rename(root.with_name("kept"))


@pytest.fixture
def session(tune: Tune, kept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session as a stranger would hand it over: with its files, and nothing known of them."""
    root = faults.put_back(kept, kept.with_name("project"))
    shutil.rmtree(root.with_name("state"), ignore_errors=True)
    monkeypatch.chdir(root)
    monkeypatch.setenv("XDG_STATE_HOME", str(root.with_name("state")))
    return root / "mine"


def test_ones_own_session_asks_nothing(tune: Tune) -> None:
    assert tune("scale.cu", *NEW, "--quiet", "--session", "mine").exit_code == 0
    for words in (RESUME, VERIFY):
        assert tune(*words).exit_code == 0


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("words", [RESUME, VERIFY, (*RESUME, "--peers"), ("record", *RESUME[:2])])
def test_without_a_terminal_a_strangers_is_refused_with_what_would_do(
    tune: Tune, words: tuple[str, ...]
) -> None:
    result = tune(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "mine: its reference is Python, which would run with your rights: " in result.stderr
    assert "scale.py\n  read it first; then --trust" in result.stderr
    assert not Path("ran").exists()


@pytest.mark.usefixtures("session")
def test_who_names_the_kernel_and_its_space_is_not_asked(tune: Tune) -> None:
    """As on another machine, where a fleet or a campaign goes on."""
    assert tune("scale.cu", *RESUME, "--space", "scale.yaml").exit_code == 0
    assert tune(*RESUME).exit_code == 0


@pytest.mark.usefixtures("session")
def test_a_kernel_whose_space_is_another_than_the_sessions_vouches_for_nothing(
    tune: Tune,
) -> None:
    own = Path("search_spaces/scale.yaml")
    own.parent.mkdir()
    text = Path("scale.yaml").read_text(encoding="utf-8")
    own.write_text(text.replace("scale.cu", "../scale.cu").replace("scale.py", "../scale.py"))
    result = tune("scale.cu", *RESUME)
    assert result.exit_code == 2, result.output
    assert "its reference is Python" in result.stderr
    assert not Path("ran").exists()


@pytest.mark.usefixtures("session")
def test_what_only_reads_a_session_runs_nothing(tune: Tune) -> None:
    assert tune("report", "mine").exit_code == 0
    for words in (("--to", "out"), ("--kernel-tuner", "files"), ("--trajectories", "a.jsonl")):
        tune("export", "mine", *words)
    assert not Path("ran").exists()


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("words", [RESUME, VERIFY])
def test_trust_runs_it_and_is_remembered(tune: Tune, words: tuple[str, ...]) -> None:
    assert tune(*words, "--trust").exit_code == 0
    assert Path("ran").exists() or words == RESUME  # which has all that it asks for
    assert tune(*words).exit_code == 0


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("\n", 2)])
def test_on_a_terminal_it_is_asked(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    monkeypatch.setattr(options, "on_terminal", lambda: True)
    result = tune(*VERIFY, answer=answer)
    assert result.exit_code == code, result.output
    assert re.search(
        r"mine runs the Python in \S+scale.py, with your rights. Go on\?", result.stderr
    )
    assert Path("ran").exists() is (code == 0)


def test_a_program_is_refused_too(session: Path) -> None:
    with pytest.raises(SessionError, match="its reference is Python"):
        tuner.tune(session=session)
    assert not Path("ran").exists()


def test_another_text_needs_another_word(tune: Tune, session: Path) -> None:
    assert tune(*VERIFY, "--trust").exit_code == 0
    shutil.rmtree(session)
    path = Path("scale.py")
    path.write_text(path.read_text() + "# changed\n")
    assert tune("scale.cu", *NEW, "--quiet", "--session", "mine").exit_code == 0
    known = list(Path("../state").rglob("trusted-references/*"))
    assert len(known) == 2
    for one in known:
        one.unlink()
    assert tune(*VERIFY).exit_code == 2


def test_a_state_folder_that_cannot_be_written_costs_a_question(tune: Tune, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    assert tune("scale.cu", *NEW, "--quiet", "--session", "mine").exit_code == 0
    assert tune(*VERIFY).exit_code == 2


def test_what_runs_is_the_text_and_no_bytecode_beside_it(tune: Tune) -> None:
    path = Path("scale.py")
    text = path.read_text()
    path.write_text(text + "open('evil', 'w')\n")
    py_compile.compile("scale.py", invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    path.write_text(text)
    assert tune("scale.cu", *NEW, "--quiet", "--session", "mine").exit_code == 0
    assert Path("ran").exists()
    assert not Path("evil").exists()


LOOP, EXIT = "while True: pass", "__import__('os')._exit(0)"
CATCHING = "\n    while True:\n        try: open('ran')\n        except BaseException: pass"
PRINTING = "print('\\x1b[2J')\n__import__('os').write(2, b'\\x1b[2J')\n"
# What a reference begins with, at its top or in its function, and what is said of it.
CHECKED = {
    "a loop at import": (LOOP, "", r":1: computes for over 2 s"),
    "a loop": ("", LOOP, r":\d+: computes for over 2 s"),
    "a loop that catches all": ("", CATCHING, r"(:\d+)?: computes for over 2 s"),
    "an end at import": (EXIT, "", r":1: cannot be imported: SystemExit: 0"),
    "an end": ("", EXIT, r":\d+: fails on R=1.*SystemExit: 0"),
    "a crash": (
        "",
        "__import__('os').abort()",
        r": ends the process that runs it \(exit code -6\)",
    ),
    "much memory at import": ("bytearray(2**46)", "", r":1: takes more than [\d.]+ GiB of memory"),
    "much memory": ("", "bytearray(2**46)", r":\d+: takes more than [\d.]+ GiB of memory"),
    "an interruption": ("", "raise KeyboardInterrupt", ": raises KeyboardInterrupt"),
    "a question": ("", "input()", r":\d+: fails on R=1.*EOFError"),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("words", [(), ("--no-run",)], ids=["run", "not run"])
def test_whatever_a_reference_does_is_one_message_of_a_check(
    tune: Tune,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    words: tuple[str, ...],
) -> None:
    top, within, told = CHECKED[name]
    if "over 2 s" in told:
        monkeypatch.setattr(reference_process, "LIMIT_S", 2.0)
        monkeypatch.setattr(reference_process, "GRACE_S", 2.0)
    path = Path("scale.py")
    head, function, rest = path.read_text().partition("def reference(xp, inputs, axes):\n")
    path.write_text(f"{top}\n{head}{function}    {within or 'pass'}\n{rest}{PRINTING}")
    result = tune("check", "scale.yaml", *words)
    assert result.exit_code == 2, (result.output, result.exception)
    assert re.search(f"^Error: scale.py{told}", result.stderr, re.MULTILINE), result.stderr
    assert len(re.findall("^Error: ", result.stderr, re.MULTILINE)) == 1
    assert capfd.readouterr() == ("", "")
