"""Count the rows that satisfy several relations at once, and draw among them, without listing them.

Variable elimination (Dechter, "Bucket elimination: a unifying framework for reasoning", 1999): one
parameter after the other is summed out of the relations that mention it. The sum of all weights
is the number of rows; going back, each parameter is drawn given the later ones, which makes every
row equally likely. The cost grows with the largest table on the way, not with the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import frexp, prod
from typing import TYPE_CHECKING

import numpy as np

from tuner.search.relations import (
    Groups,
    Relation,
    join,
    keys_of,
    spread,
    summed,
)
from tuner.search.rows import TooManyRowsError

if TYPE_CHECKING:
    from tuner.search.relations import Array, Floats
    from tuner.search.rows import Rows

# Half a million rows of eight parameters, with weights and keys, are 40 MB while they are joined.
MOST_JOINED = 500_000


@dataclass(frozen=True, slots=True)
class _Step:
    """The values of one parameter given some of those that are eliminated after it.

    The group of `keys[i]` is from `bounds[i]` to `bounds[i + 1]` in the others. `cumulative` adds
    up the weights, of which each group has 1.
    """

    position: int
    given: tuple[int, ...]
    keys: Array
    bounds: Array
    values: Array
    cumulative: Floats


@dataclass(frozen=True, slots=True)
class Joint:
    """All rows that satisfy every relation; `size` is their number, exact below 2^53."""

    sizes: tuple[int, ...]
    steps: tuple[_Step, ...]
    size: int

    def draw(self, count: int, rng: np.random.Generator) -> Rows:
        """Draw rows independently, each row with the same probability."""
        rows = np.zeros((count, len(self.sizes)), dtype=np.uint16)
        for step in reversed(self.steps):
            starts, ends = self._ranges(step, rows)
            before = np.where(starts > 0, step.cumulative[starts - 1], 0.0)
            targets = before + rng.random(count) * (step.cumulative[ends - 1] - before)
            places = np.searchsorted(step.cumulative, targets, "right")
            rows[:, step.position] = step.values[np.clip(places, starts, ends - 1)]
        return rows

    def all_rows(self, limit: int) -> Rows:
        """List every row in lexicographic order; raise `TooManyRowsError` over `limit` rows."""
        rows = np.zeros((min(1, self.size), len(self.sizes)), dtype=np.uint16)
        for step in reversed(self.steps):
            members, owners = spread(*self._ranges(step, rows), limit)
            rows = rows[owners]
            rows[:, step.position] = step.values[members]
        return rows[np.lexsort(rows.T[::-1])] if self.sizes else rows

    def _ranges(self, step: _Step, rows: Rows) -> tuple[Array, Array]:
        keys = keys_of(rows[:, list(step.given)], [self.sizes[i] for i in step.given])
        places = np.searchsorted(step.keys, keys)
        return step.bounds[places], step.bounds[places + 1]


def joint_of(sizes: Sequence[int], relations: Sequence[Relation]) -> Joint:
    """Eliminate every parameter; raise `TooManyRowsError` where a table on the way is too large.

    `sizes` has every parameter's number of values.
    """
    left = list(relations)
    mentioned = {position for relation in relations for position in relation.positions}
    for position in set(range(len(sizes))) - mentioned:
        column = np.arange(sizes[position], dtype=np.uint16)[:, np.newaxis]
        left.append(Relation.of((position,), column))
    steps = []
    exponent = 0
    waiting = set(range(len(sizes)))
    while waiting:
        position, table = _cheapest(waiting, left, sizes)
        left = [relation for relation in left if position not in relation.positions]
        given = tuple(other for other in table.positions if other != position)
        steps.append(_step(position, given, table, sizes))
        message, added = _scaled(summed(table, given, sizes))
        left.append(message)
        exponent += added
        waiting.remove(position)
    weight = prod((Fraction(float(relation.weights.sum())) for relation in left), start=Fraction(1))
    return Joint(tuple(sizes), tuple(steps), int(weight * Fraction(2) ** exponent))


def widest_table(sizes: Sequence[int], relations: Sequence[Relation]) -> float:
    """Estimate the rows of the largest table that `joint_of` makes, without making any.

    As if relations were independent: their shares of all combinations are multiplied.
    """
    left = [
        (
            frozenset(relation.positions),
            len(relation.rows) / prod(sizes[i] for i in relation.positions),
        )
        for relation in relations
    ]
    waiting = {position for scope, _ in left for position in scope}
    widest = 0.0
    while waiting:
        unions = {p: frozenset().union(*(s for s, _ in left if p in s)) for p in waiting}
        rows = {
            p: prod(sizes[i] for i in unions[p]) * prod(share for s, share in left if p in s)
            for p in waiting
        }
        position = min(waiting, key=lambda p: (rows[p], p))
        widest = max(widest, rows[position])
        scope = unions[position] - {position}
        left = [(s, share) for s, share in left if position not in s]
        left.append((scope, min(1.0, rows[position] / prod(sizes[i] for i in scope))))
        waiting.remove(position)
    return widest


def _cheapest(
    waiting: set[int], left: Sequence[Relation], sizes: Sequence[int]
) -> tuple[int, Relation]:
    """Join the relations of the parameter that promises the smallest table."""

    def promise(position: int) -> tuple[int, int]:
        own = [relation for relation in left if position in relation.positions]
        union = {other for relation in own for other in relation.positions}
        rows = min(prod(sizes[i] for i in union), prod(len(r.rows) for r in own))
        return rows, position

    for position in sorted(waiting, key=promise):
        own = [relation for relation in left if position in relation.positions]
        try:
            return position, _joined(own, sizes)
        except TooManyRowsError:
            continue
    raise TooManyRowsError


def _joined(relations: Sequence[Relation], sizes: Sequence[int]) -> Relation:
    first, *others = sorted(relations, key=lambda relation: len(relation.rows))
    while others:
        known = set(first.positions)
        nearest = min(others, key=lambda r: (len(set(r.positions) - known), len(r.rows)))
        others = [other for other in others if other is not nearest]
        first = join(first, nearest, sizes, MOST_JOINED)
    return first


def _step(position: int, given: tuple[int, ...], table: Relation, sizes: Sequence[int]) -> _Step:
    groups = Groups.of(table, given, sizes)
    bounds = np.append(groups.firsts, len(groups.order))
    weights = table.weights[groups.order]
    if len(weights):
        # Each group adds up to 1: otherwise a light one would drown in the rounding of heavy ones.
        weights = weights / np.repeat(np.add.reduceat(weights, groups.firsts), np.diff(bounds))
    values = table.columns([position])[groups.order, 0]
    keys = groups.keys[groups.firsts]
    return _Step(position, given, keys, bounds, values, np.cumsum(weights))


def _scaled(relation: Relation) -> tuple[Relation, int]:
    """Divide the weights by a power of two, which is exact, so that no product overflows."""
    if not len(relation.rows):
        return relation, 0
    exponent = frexp(float(relation.weights.max()))[1]
    scaled = relation.weights * 2.0**-exponent
    return Relation(relation.positions, relation.rows, scaled), exponent
