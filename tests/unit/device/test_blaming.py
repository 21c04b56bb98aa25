"""Code of the user's file that fails, ends or computes without end: one error at its line."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.device.reference import blamed_on
from tuner.model.errors import KernelError

CODES = {
    "loops": ("x = 1\nwhile True: pass", ":2: computes for over 0.2 s"),
    "catches what ends it": (
        "while True:\n  try:\n    while True: pass\n  except Exception: pass",
        ":3: computes for over 0.2 s",
    ),
    "cannot be told": (
        "class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E()",
        ":3: computes for over 0.2 s",
    ),
    "fails": ("x = 1\n1 / 0", ":2: fails: ZeroDivisionError: division by zero"),
    "exits": ("import sys\nsys.exit(3)", ":2: fails: SystemExit: 3"),
    "raises what nobody catches": ("raise BaseException('a')", ":1: fails: BaseException: a"),
    "ends a generator": ("raise GeneratorExit", ":1: fails: GeneratorExit"),
}


@pytest.fixture
def no_timer() -> Iterator[None]:
    """Take away the timer of a test's own limit, which leaves none for the code."""
    before = signal.setitimer(signal.ITIMER_REAL, 0.0)
    yield
    assert signal.setitimer(signal.ITIMER_REAL, *before) == (0.0, 0.0)


@pytest.mark.usefixtures("no_timer")
@pytest.mark.parametrize("name", CODES)
def test_whatever_it_does_is_one_error_at_its_line(name: str) -> None:
    text, told = CODES[name]
    path = Path("reference.py")
    code = compile(text, str(path), "exec")
    with pytest.raises(KernelError) as raised, blamed_on(path, "fails", limit_s=0.2):
        exec(code, {})  # noqa: S102
    assert str(raised.value).startswith(f"reference.py{told}")


def test_memory_that_ends_is_nobodys_mistake() -> None:
    text = "CUDA error: out of memory"
    with (
        pytest.raises(MemoryError, match="out of memory"),
        blamed_on(Path("reference.py"), "fails"),
    ):
        raise RuntimeError(text)


@pytest.mark.usefixtures("no_timer")
def test_ctrl_c_is_the_users() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(KeyboardInterrupt), blamed_on(Path("reference.py"), "fails"):
        raise KeyboardInterrupt
    assert signal.getsignal(signal.SIGALRM) is handler
