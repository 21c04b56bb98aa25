"""What a run's time goes to, added up over its threads: seconds, processes, what it waits for."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

_lock = threading.Lock()
_starts: Counter[str] = Counter()
_seconds: defaultdict[str, float] = defaultdict(float)
_longest: defaultdict[str, float] = defaultdict(float)
# What is going on, by who does it, and since when.
_open: dict[int, tuple[str, float]] = {}
_own = threading.local()


@dataclass(slots=True)
class _Block:
    name: str
    inside_s: float = 0.0


@contextmanager
def spent_on(what: str) -> Iterator[None]:
    """Count the seconds of a block, without those of blocks inside, under a name.

    That of a block in another one follows the outer one's: `race/timing`.
    """
    outer: _Block | None = getattr(_own, "block", None)
    block = _own.block = _Block(what if outer is None else f"{outer.name}/{what}")
    began_s = time.monotonic()
    note_begin(id(block), what)
    try:
        yield
    finally:
        took_s = time.monotonic() - began_s
        note_end(id(block))
        _own.block = outer
        if outer is not None:
            outer.inside_s += took_s
        with _lock:
            _seconds[block.name] += took_s - block.inside_s


def list_seconds() -> Mapping[str, float]:
    with _lock:
        return dict(_seconds)


def note_start(what: str) -> None:
    """Count a process that was just started; `what` is its name as `ps` shows it."""
    with _lock:
        _starts[what] += 1


def starts() -> Counter[str]:
    with _lock:
        return Counter(_starts)


def note_begin(key: int, what: str) -> None:
    """Note that something begins that may take long; `key` is told again at its end."""
    with _lock:
        _open[key] = what, time.monotonic()


def note_end(key: int, seconds: float = 0.0) -> None:
    """Note its end, and how long it took by its own clock."""
    with _lock:
        what, _ = _open.pop(key, ("", 0.0))
        _longest[what] = max(_longest[what], seconds)


def waits(at_least_s: float) -> list[tuple[str, float]]:
    """List what has gone on for so long, with its seconds, what began last first."""
    with _lock:
        now_s = time.monotonic()
        going_on = [(what, now_s - since_s) for what, since_s in _open.values()]
    return sorted((wait for wait in going_on if wait[1] >= at_least_s), key=lambda wait: wait[1])


def take_longest(what: str) -> float:
    """Tell the longest seconds that something took since the last call."""
    with _lock:
        return _longest.pop(what, 0.0)
