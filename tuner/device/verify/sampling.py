"""What timed calls meet, and which of their results are judged: nobody can foresee either."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Generic, TypeVar

from tuner.device.layout import Patch

# So many results of a program are judged, each as likely the last as the first: one that is wrong
# from the fifth of 17 calls on gets away with it once in 2,000 times.
JUDGED = 4
# One call in so many meets again what a result is kept of, to see whether its bits repeat.
REPEATED = 4
_T = TypeVar("_T")


class SampledCalls(Generic[_T]):
    """Draw the variant of the inputs for each call of one program, and keep some of the results.

    A variant is another one than all before it as long as there are any: where two calls differ
    cannot be learnt from those that came earlier.
    """

    def __init__(self, patch: Patch) -> None:
        self._numbers = _shuffled(len(patch.changes))
        self._seen = 0
        self.kept: list[tuple[int, _T]] = []

    def draw(self) -> int:
        """Choose the variant of the next call."""
        if self.kept and secrets.randbelow(REPEATED) == 0:
            return secrets.choice(self.kept)[0]
        return next(self._numbers)

    def known(self, number: int) -> _T | None:
        """Return the result that is kept of a variant."""
        return next((result for one, result in self.kept if one == number), None)

    def keep(self, number: int, result: _T) -> None:
        """Keep a result in place of another or not at all, so that all are as likely to be kept."""
        self._seen += 1
        if len(self.kept) < JUDGED:
            self.kept.append((number, result))
        elif (place := secrets.randbelow(self._seen)) < JUDGED:
            self.kept[place] = number, result


def _shuffled(changes: int) -> Iterator[int]:
    """Yield the numbers of all changes in a random order, again and again; 0 where none is."""
    numbers = [*range(1, changes + 1)] or [0]
    while True:
        secrets.SystemRandom().shuffle(numbers)
        yield from numbers
