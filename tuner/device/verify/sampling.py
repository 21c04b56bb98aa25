"""What timed calls meet, and which of their results are judged: nobody can foresee either."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tuner.device.layout import Patch

# So many results of a program are judged, each as likely the last as the first: one that is wrong
# from the fifth of 17 calls on gets away with it once in 2,000 times. On a GPU, where a trial takes
# as long as judging a few of them, only so many: finals look at some of hundreds of replays again.
JUDGED, JUDGED_ON_GPU = 4, 2
# One call in so many meets again what a result is kept of, to see whether its bits repeat.
REPEATED = 3
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Judging:
    """What a call meets whose result counts, and where it is kept; None: its bits are compared."""

    variant: int
    place: int | None


class SampledCalls(Generic[_T]):
    """Plan the calls of one program: which of them are judged, and on what.

    Those meet other variants than all before them, as long as there are any: where two calls differ
    cannot be learnt from those that came earlier.
    """

    def __init__(self, patch: Patch, judged: int = JUDGED) -> None:
        self._judged = judged
        self._variants = _shuffled(len(patch.changes))
        self._seen = 0
        # By its place, each kept result with its variant.
        self.kept: dict[int, tuple[int, _T]] = {}

    def plan(self) -> Judging | None:
        """Choose what the next call is for; None where its result counts for nothing."""
        if self.kept and secrets.randbelow(REPEATED) == 0:
            variant, _ = secrets.choice([*self.kept.values()])
            return Judging(variant, None)
        self._seen += 1
        # Several may be planned before the first of them is kept.
        place = self._seen - 1 if self._seen <= self._judged else secrets.randbelow(self._seen)
        return Judging(self.draw(), place) if place < self._judged else None

    def draw(self) -> int:
        """Choose a variant that no call has met, as long as there are any."""
        return next(self._variants)

    def known(self, variant: int) -> tuple[int, _T] | None:
        """Return where a result on a variant is kept, and the result."""
        found = ((place, result) for place, (one, result) in self.kept.items() if one == variant)
        return next(found, None)


def _shuffled(changes: int) -> Iterator[int]:
    """Yield the numbers of all changes in a random order, again and again; 0 where none is."""
    numbers = [*range(1, changes + 1)] or [0]
    while True:
        secrets.SystemRandom().shuffle(numbers)
        yield from numbers
