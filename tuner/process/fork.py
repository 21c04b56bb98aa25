"""Work in a copy of this process, which may die of it or change what can't be changed back."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

from tuner.process.confinement import end_with_parent


def in_a_fork(work: Callable[[], bytes]) -> bytes:
    """Return what `work` returns in a fork of this process; empty where it fails.

    The fork ends with the calling thread. It must not need what other threads hold or do.
    """
    ours, theirs = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        _answer(work, theirs, parent)
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        found = stream.read()
    _, status = os.waitpid(child, 0)
    return found if status == 0 else b""


def _answer(work: Callable[[], bytes], descriptor: int, parent: int) -> NoReturn:
    status = 1
    try:
        end_with_parent(parent)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(work())
        status = 0
    finally:
        os._exit(status)  # whatever is on this thread's stack is the parent's
