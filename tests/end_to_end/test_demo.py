"""`tune demo`: a newcomer's first command, in an empty folder and without any compiler."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cli.demo_command import FILES, KERNELS

ROOT = Path(__file__).parents[2]
DEMO = (sys.executable, "-m", "tuner", "demo")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Nothing of this one: no compiler on the path, and a home that is empty."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {"PATH": "/nonexistent", "HOME": str(home), "PYTHONPATH": str(ROOT), **more}


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("empty")
    env = environment(folder, LINES="24", COLUMNS="80")
    done = subprocess.run(DEMO, cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return folder, done.stdout


def test_the_result_fits_a_screen_and_is_said_to_be_recorded(demonstrated) -> None:
    _, printed = demonstrated
    lines = printed.splitlines()
    assert any(line.startswith("RECORDED: no GPU is used; answers come from") for line in lines)
    (end,) = (number for number, line in enumerate(lines) if re.search(r"\d s  done$", line))
    assert 12 <= len(lines[end + 1 :]) <= 23
    assert max(map(len, lines[end + 1 :])) <= 80
    assert re.match(r"1\.\d\dx faster than the baseline \(geometric mean over 16", lines[-2])


def test_it_leaves_a_report_and_the_kernel_s_files(demonstrated) -> None:
    folder, _ = demonstrated
    report = folder / "tune-demo/sessions/rmsnorm/report.html"
    assert "<title>" in report.read_text(encoding="utf-8")
    for kernel in KERNELS:
        assert (folder / f"tune-demo/kernels/sglang/{kernel}.cu").is_file()


def test_what_it_says_comes_next_works(demonstrated) -> None:
    folder, printed = demonstrated
    (export,) = re.findall(r"^next +tune (export .*)$", printed, re.MULTILINE)
    words = [*DEMO[:-1], *export.split()]
    subprocess.run(words, cwd=folder, env=environment(folder), capture_output=True, check=True)
    assert list((folder / "tune-demo/variants").glob("*.h*"))


def test_a_second_time_is_refused_with_what_to_do(demonstrated) -> None:
    folder, _ = demonstrated
    env = environment(folder)
    done = subprocess.run(DEMO, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "tune-demo/sessions/rmsnorm: the demo was run here before" in done.stderr
    assert "--to" in done.stderr


def test_its_files_are_those_of_the_tree() -> None:
    for file in FILES.rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            assert file.samefile(ROOT / file.relative_to(FILES)), file


def test_an_interruption_says_how_to_go_on(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with subprocess.Popen(
        DEMO, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        while "trials" not in demo.stdout.readline():
            assert demo.poll() is None
        demo.send_signal(signal.SIGINT)
        _, said = demo.communicate()
    assert demo.returncode == 130
    assert "--resume tune-demo/sessions/rmsnorm" in said
