"""The valid rows of a space that is too large to list: their number, and drawing among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.errors import InputError
from tuner.search.rows import Rows, no_rows, row_keys
from tuner.search.verdicts import Verdict, verdicts

if TYPE_CHECKING:
    from tuner.search.joint import Joint
    from tuner.search.tables import Part
    from tuner.space import Parameter

# Draws at a time, and in all where some constraints can only be tried on whole rows.
BATCH = 20_000
MOST_DRAWS = 2_000_000

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class FailingRowError(Exception):
    """Say which constraint cannot be evaluated for a row that the others allow."""

    def __init__(self, constraint: int, row: tuple[int, ...]) -> None:
        super().__init__(constraint, row)
        self.constraint, self.row = constraint, row


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """The valid rows of a space, all of them equally likely to be drawn.

    `joint` satisfies every constraint but the `loose` ones, which are tried on each row drawn.
    `size` is the number of valid rows: exact without loose constraints, else from a share of draws.
    """

    parameters: tuple[Parameter, ...]
    parts: tuple[Part, ...]
    joint: Joint
    loose: tuple[Part, ...]
    size: int

    @classmethod
    def of(
        cls,
        parameters: tuple[Parameter, ...],
        parts: tuple[Part, ...],
        joint: Joint,
        loose: tuple[Part, ...],
    ) -> Population:
        """Count the valid rows; raise `InputError` where no draw satisfies the loose constraints.

        Raises `FailingRowError` for one that cannot be evaluated.
        """
        counted = cls(parameters, parts, joint, loose, joint.size)
        return replace(counted, size=counted._estimate()) if loose else counted

    def valid(self, rows: Rows) -> Mask:
        """Say which rows satisfy every constraint; raise `FailingRowError` for one that fails."""
        return satisfying(self.parameters, self.parts, rows)

    def _estimate(self) -> int:
        drawn = found = 0
        for batch in self._batches(np.random.default_rng(0)):
            drawn, found = drawn + BATCH, found + len(batch)
            if found >= BATCH // 2:
                break
        if found:
            return max(1, self.joint.size * found // drawn)
        texts = " and ".join(f"`{part.residual.text}`" for part in self.loose)
        raise InputError(
            f"{texts} left none of {drawn} configs drawn from {self.joint.size}",
            remedy="write it as several constraints over fewer parameters, or leave out values",
        )

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Draw different rows, every set of them with the same probability.

        Fewer than `count` where loose constraints let too few of `MOST_DRAWS` through.
        """
        wanted = count if self.loose else min(count, self.size)
        drawn = no_rows(len(self.parameters))
        for batch in self._batches(rng):
            drawn = np.concatenate([drawn, batch])
            firsts = np.unique(row_keys(drawn), return_index=True)[1]
            drawn = drawn[np.sort(firsts)[:wanted]]
            if len(drawn) == wanted:
                break
        return drawn

    def _batches(self, rng: np.random.Generator) -> Iterator[Rows]:
        for _ in range(MOST_DRAWS // BATCH):
            rows = self.joint.draw(BATCH, rng)[:, : len(self.parameters)]
            yield rows[satisfying(self.parameters, self.loose, rows)] if self.loose else rows


@lru_cache(maxsize=8)
def first_rows(population: Population, count: int, seed: int) -> Rows:
    """Draw the sample that a pool starts with, in lexicographic order."""
    rows = population.sample(count, np.random.default_rng(seed))
    rows = rows[np.argsort(row_keys(rows))]
    rows.flags.writeable = False
    return rows


def satisfying(parameters: Sequence[Parameter], parts: Sequence[Part], rows: Rows) -> Mask:
    """Say which rows no constraint excludes; raise `FailingRowError` where one fails on such."""
    left = np.arange(len(rows))
    failed = []
    for part in parts:
        told = verdicts(part.residual, parameters, rows[left])
        failed.append((part, left[told == Verdict.FAILS]))
        left = left[told != Verdict.BROKEN]
    keep: Mask = np.zeros(len(rows), dtype=bool)
    keep[left] = True
    for part, places in failed:
        allowed = places[keep[places]]
        if len(allowed):
            raise FailingRowError(part.constraint, tuple(rows[allowed[0]].tolist()))
    return keep
