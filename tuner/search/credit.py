"""Which member of a portfolio proposes next, by what each has found."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# What a member has found is forgotten by half after this many of its trials.
HALF_LIFE = 20
# No member falls under this share: the one that fails now may be the only one that can go on.
LEAST_SHARE = 0.05
# Finds and trials that a member is given at first: its share moves once it has a few more.
_PRIOR_FINDS, _PRIOR_TRIALS = 1.0, 4.0


class Credit:
    """Draw members in proportion to their first share and to the rate of their finds."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = dict(shares)
        self._finds = dict.fromkeys(shares, 0.0)
        self._trials = dict.fromkeys(shares, 0.0)

    def draw(self, rng: np.random.Generator) -> str:
        """Draw the member that proposes next."""
        odds = self.odds()
        return list(odds)[int(rng.choice(len(odds), p=list(odds.values())))]

    def odds(self) -> dict[str, float]:
        """Return the probability of every member."""
        raw = {
            name: share * (self._finds[name] + _PRIOR_FINDS) / (self._trials[name] + _PRIOR_TRIALS)
            for name, share in self._shares.items()
        }
        total = sum(raw.values())
        raised = {name: max(value / total, LEAST_SHARE) for name, value in raw.items()}
        total = sum(raised.values())
        return {name: value / total for name, value in raised.items()}

    def count(self, name: str, *, found: bool) -> None:
        """Note whether a member's trial was a find."""
        kept = 0.5 ** (1 / HALF_LIFE)
        self._finds[name] = self._finds[name] * kept + found
        self._trials[name] = self._trials[name] * kept + 1.0
