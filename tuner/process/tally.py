"""What a run's time goes to: its seconds, added up over its threads, and processes it started."""

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
    try:
        yield
    finally:
        took_s = time.monotonic() - began_s
        _own.block = outer
        if outer is not None:
            outer.inside_s += took_s
        with _lock:
            _seconds[block.name] += took_s - block.inside_s


def list_seconds() -> Mapping[str, float]:
    """Tell the seconds until now, by name."""
    with _lock:
        return dict(_seconds)


def note_start(what: str) -> None:
    """Count a process that was just started; `what` is its name as `ps` shows it."""
    with _lock:
        _starts[what] += 1


def starts() -> Counter[str]:
    """Count all that were started until now, by their names."""
    with _lock:
        return Counter(_starts)
