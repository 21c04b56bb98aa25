"""The program: its help, how it chooses a command, how it starts and how it fails."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result

from tuner import __version__
from tuner.cli import COMMANDS

HEAVY = "cuda kernel_tuner numpy optuna pandas pydantic rich ruamel sqlalchemy jinja2 tree_sitter"


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_help_shows_the_options_of_a_run_and_every_command(tune) -> None:
    result: Result = tune("--help")
    assert result.exit_code == 0
    assert "tune KERNEL.cu [OPTIONS]" in result.output
    for word in ("--searcher", "--resume", *COMMANDS):
        assert word in result.output


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from tuner.cli import cli\n"
        "cli.main(['--help'], prog_name='tune', standalone_mode=False)\n"
        f"print('loaded:', *sorted(set(sys.modules) & set({HEAVY.split()!r})))\n"
    )
    assert python("-c", code).stdout.splitlines()[-1] == "loaded:"


def test_help_answers_at_once() -> None:
    def processor_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert python("-m", "tuner", "--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Processor time, for the other tests share the machine.
    assert min(processor_seconds() for _ in range(3)) < 0.3


def test_the_module_is_the_program_under_its_own_name() -> None:
    assert python("-m", "tuner", "--version").stdout == f"tune {__version__}\n"
    assert python("-m", "tuner", "--help").stdout.startswith("Usage: tune KERNEL.cu")


def test_an_interruption_while_a_class_is_made_ends_it_with_130_too(tmp_path) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import signal, sys\n"
        "from click.exceptions import Exit\n"
        "from tuner.cli.exits import translated_errors\n"
        "try:\n"
        "    with translated_errors():\n"
        "        exec('signal.raise_signal(signal.SIGINT)')\n"
        "except Exit as end:\n"
        "    sys.exit(end.exit_code)\n"
    )
    words = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_interruption_while_the_program_is_loaded_ends_it_with_130() -> None:
    code = (
        "import runpy, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'tuner.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "runpy.run_module('tuner', run_name='__main__')\n"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_the_program_can_be_told_the_name_it_was_called_by(monkeypatch) -> None:
    monkeypatch.setenv("TUNE_PROGRAM", "scripts/tune")
    assert python("-m", "tuner", "--help").stdout.startswith("Usage: scripts/tune KERNEL.cu")


def test_no_words_at_all_show_the_help(tune) -> None:
    assert "Usage: tune KERNEL.cu" in tune().output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(tune, name: str) -> None:
    result = tune(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: tune {name}")


def test_options_may_stand_before_the_kernel(tune) -> None:
    result = tune("--trials", "5", "missing.cu")
    assert result.exit_code == 2
    assert "no such kernel file: missing.cu" in result.stderr


LONG = "x" * 300


@pytest.mark.parametrize(
    "words", [(LONG,), (f"{LONG}.cu",), ("check", LONG), ("render", LONG), ("init", f"{LONG}.cu")]
)
def test_a_name_that_no_file_can_have_is_one_error(tune, words: tuple[str, ...]) -> None:
    result = tune(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: xxx")
    assert result.stderr.count("Error: ") == 1
    assert "file name too long" in result.stderr.lower()


@pytest.mark.parametrize(
    ("named", "shown"),
    [("{here}/a/b", "a/b"), ("{here}/a{here}/b", "a{here}/b"), ("/none{here}/a", "/none{here}/a")],
)
def test_only_paths_below_the_current_folder_are_shortened(
    tune, monkeypatch, tmp_path, named: str, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    here = tmp_path.resolve()
    result = tune("report", named.format(here=here))
    assert result.stderr.startswith(f"Error: {shown.format(here=here)}: no such session")


def test_a_misspelled_command_is_told_the_right_one(tune) -> None:
    result = tune("chekc", "space.yaml")
    assert result.exit_code == 2
    assert "neither a command nor a kernel file; did you mean `check`?" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.cu"], "no such kernel file: missing.cu"),
        (["--quiet"], "no kernel given"),
        (["k.cu", "--space", "missing.yaml"], "'missing.yaml' does not exist"),
        (["k.cu", "--searcher", "annealing"], "'annealing' is none of auto, exhaustive"),
        (["k.cu", "--time", "5"], "write it as 90s, 5m or 1h30m"),
        (["k.cu", "--trials", "0"], "0 is not in the range"),
        (["k.cu", "--trials", "abc"], "'abc' is not a valid whole number"),
        (["resume", "s"], "did you mean `tune --resume SESSION`?"),
        (["k.cu", "--seed", "x"], "'x' is not a whole number"),
        (["k.cu", "--seed", "-1"], "'-1' is not a whole number from 0"),
        (["k.cu", "--operator", "gelu"], "'gelu' is not NAME=VALUE"),
        (["k.cu", "--colour"], "No such option"),
        (["k.cu", "another.cu"], "unexpected extra argument"),
        (["check"], "Missing argument 'SPACE.yaml'"),
        (["check", "missing.yaml"], "missing.yaml"),
        (["render", "missing.yaml"], "missing.yaml"),
        (["report", "missing"], "missing"),
        (["--resume", "missing"], "missing"),
    ],
    ids=" ".join,
)
def test_bad_words_end_with_one_message_and_code_2(
    tune, tmp_path: Path, monkeypatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = tune(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not list(tmp_path.iterdir())
