"""Work in a fork: its answer, and what becomes of this process where the fork dies."""

import os
from collections.abc import Callable
from typing import NoReturn

import pytest

from tuner.extensions.backends.opencl.compiler import in_a_fork


def crash() -> NoReturn:
    os.abort()


def fail() -> NoReturn:
    raise ValueError("no")


def test_it_gives_what_the_work_returns_however_long() -> None:
    assert in_a_fork(lambda: b"1" * 1_000_000) == b"1" * 1_000_000


@pytest.mark.parametrize("work", [crash, fail])
def test_work_that_fails_gives_nothing(work: Callable[[], bytes]) -> None:
    assert in_a_fork(work) == b""


def test_what_it_changes_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN", "before")

    def change() -> bytes:
        os.environ["SEEN"] = "after"
        return os.environ["SEEN"].encode()

    assert in_a_fork(change) == b"after"
    assert os.environ["SEEN"] == "before"
