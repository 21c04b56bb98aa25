"""How many processes this one has started, by what they are: each costs a run its time."""

from __future__ import annotations

import threading
from collections import Counter

_lock = threading.Lock()
_counts: Counter[str] = Counter()


def note_start(what: str) -> None:
    """Count a process that was just started; `what` is its name as `ps` shows it."""
    with _lock:
        _counts[what] += 1


def starts() -> Counter[str]:
    """Count all that were started until now, by their names."""
    with _lock:
        return Counter(_counts)
