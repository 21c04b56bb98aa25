"""Problems that loop, end or fill the process that reads them, or lie: one message and its code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from torch_here import needs_torch

from tuner.cli import cli
from tuner.device import problems
from tuner.device.problems import is_problem
from tuner.device.verify import reference_process
from tuner.extensions.draft.problems import statement
from tuner.model.errors import KernelError

MODULE = """\
import itertools, os, signal, sys, torch
{top}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {made}
    def forward(self, x):
        {run}
        return x + 1
N = {size}
def get_inputs():
    {drawn}
    return [torch.rand(N, 32)]
"""
PLACES = {"top": "", "made": "pass", "run": "pass", "drawn": "pass", "size": "64"}
CATCHING = """while True:
            try: x = x + 1
            except: pass"""
LOOP, LINE = "while True: pass", r":\d+: computes for over 2 s\n"
# What stands where, and what is said of it.
PROBLEMS = {
    "a loop at import": ({"top": LOOP}, LINE),
    "a loop in the inputs": ({"drawn": LOOP}, LINE),
    "a loop in the model": ({"made": LOOP}, LINE),
    "a loop that catches all": ({"run": CATCHING}, "computes for over 2 s"),
    "a process that waits": ({"run": "os.kill(os.getpid(), signal.SIGSTOP)"}, "for over 2 s"),
    "an exit": ({"top": "sys.exit(0)"}, "cannot be imported: SystemExit"),
    "an end": ({"run": "os._exit(0)"}, "`forward` fails: SystemExit: 0"),
    "a crash": ({"made": "os.kill(os.getpid(), signal.SIGSEGV)"}, r"exit code -11"),
    "an interruption": ({"run": "raise KeyboardInterrupt"}, "raises KeyboardInterrupt"),
    "an exception of its own": (
        {"run": "raise type('E', (BaseException,), {})('\\x1b[2J')"},
        r"`forward` fails: E: \\x1b\[2J",
    ),
    "much memory": ({"top": "x = bytearray(2**33)"}, "more than 4 GiB"),
    "a recursion": ({"run": "return self.forward(x)"}, "RecursionError"),
    "a number without end": ({"size": "1 << (1 << 40)"}, "more than 4 GiB"),
    "inputs without end": ({"drawn": "return itertools.repeat(1)"}, "over 1000 inputs"),
    "other inputs each time": (
        {"top": "C = itertools.count(1)", "drawn": "return [torch.rand(N)] * next(C)"},
        "gives other inputs when it is run again",
    ),
    "another run each time": (
        {"top": "C = itertools.count(1)", "run": "x = [x][next(C) - 1]"},
        "IndexError: list index out of range",  # where it is said depends on the machine's load
    ),
    "no results": ({"run": "return ()"}, "returns nothing"),
    "300 sizes": ({"top": "\n".join(f"C{n} = {n + 2}" for n in range(300))}, "at most 100"),
}


@needs_torch
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PROBLEMS)
def test_whatever_a_problem_does_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given, told = PROBLEMS[name]
    if "over 2 s" in told:  # all others need what importing parts of PyTorch takes
        monkeypatch.setattr(statement, "LIMIT_S", 2.0)
        monkeypatch.setattr(reference_process, "GRACE_S", 2.0)
    Path("problem.py").write_text(MODULE.format(**{**PLACES, **given}))
    result = CliRunner().invoke(cli, ["init", "problem.py"], prog_name="tune", color=True)
    assert result.exit_code == 2, (result.output, result.exception)
    assert re.search(f"^Error: problem.py.*{told}", result.stderr, re.MULTILINE), result.stderr
    assert len(re.findall("^Error: ", result.stderr, re.MULTILINE)) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["problem.py"]


@needs_torch
def test_what_a_problem_prints_and_starts_is_gone_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    top = "import subprocess, threading, time\n"
    top += "threading.Thread(target=time.sleep, args=(60,)).start()\n"
    top += "print('\\x1b[2J'); os.write(2, b'\\x1b[2J')\n"
    top += "for _ in range(2): os.fork()\n"
    top += "open('pids', 'a').write(f\"{subprocess.Popen(['sleep', '60']).pid} \")"
    Path("problem.py").write_text(MODULE.format(**{**PLACES, "top": top}))
    result = CliRunner().invoke(cli, ["init", "problem.py"], prog_name="tune", color=True)
    assert result.exit_code == 0, (result.output, result.exception)
    assert capfd.readouterr() == ("", "")
    assert not any(_runs(pid) for pid in Path("pids").read_text().split())


def _runs(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_file_is_no_problem_before_it_was_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(problems.ast, "parse")
    path = tmp_path / "problem.py"
    path.write_text("x = [" + "1, " * 1_000_000 + "]")
    assert not is_problem(path)
    path.write_text("def get_inputs(): ...\n" + path.read_text())
    with pytest.raises(KernelError, match="bytes, and a problem at most 1,000,000"):
        is_problem(path)
