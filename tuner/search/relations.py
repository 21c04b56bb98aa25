"""Tables of value indices with weights, and joining them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tuner.search.rows import Rows, TooManyRowsError, row_keys

Array = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Relation:
    """Distinct rows of value indices for some parameters, each with a positive weight.

    `positions` are those of the parameters in the space, one per column.
    """

    positions: tuple[int, ...]
    rows: Rows
    weights: Floats

    @classmethod
    def of(cls, positions: tuple[int, ...], rows: Rows) -> Relation:
        """Weigh all rows the same."""
        return cls(positions, rows, np.ones(len(rows)))

    def columns(self, positions: Sequence[int]) -> Rows:
        """The value indices of some parameters, one column each."""
        return self.rows[:, [self.positions.index(position) for position in positions]]


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows of a relation sorted by some of its columns: the same key is one group.

    `firsts` are the places in `order` and `keys` where a group begins.
    """

    order: Array
    keys: Array
    firsts: Array

    @classmethod
    def of(cls, relation: Relation, positions: Sequence[int], sizes: Sequence[int]) -> Groups:
        """Group by the columns of `positions`; `sizes` has every parameter's number of values."""
        keys = keys_of(relation.columns(positions), [sizes[i] for i in positions])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        firsts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: len(keys)])
        return cls(order, keys, firsts)

    def ranges(self, keys: Array) -> tuple[Array, Array]:
        """Where the group of each key begins and ends in `order`."""
        return np.searchsorted(self.keys, keys, "left"), np.searchsorted(self.keys, keys, "right")


def keys_of(rows: Rows, sizes: Sequence[int]) -> Array:
    """Make one sortable key per row; `sizes` are the numbers of values of its columns."""
    if prod(sizes) >= 2**63:
        return row_keys(rows)
    keys: Array = np.zeros(len(rows), dtype=np.int64)
    for column, size in zip(rows.T, sizes, strict=True):
        keys = keys * size + column
    return keys


def spread(starts: Array, ends: Array, limit: int) -> tuple[Array, Array]:
    """List all members of several ranges, and for each the number of its range.

    Raises `TooManyRowsError` where they are more than `limit`.
    """
    counts = ends - starts
    total = int(counts.sum())
    if total > limit:
        raise TooManyRowsError
    owners = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return starts[owners] + offsets, owners


def join(left: Relation, right: Relation, sizes: Sequence[int], limit: int) -> Relation:
    """Combine the rows that agree where both have a parameter; weights are multiplied.

    Raises `TooManyRowsError` where that gives more than `limit` rows.
    """
    common = [position for position in left.positions if position in right.positions]
    added = [position for position in right.positions if position not in left.positions]
    groups = Groups.of(right, common, sizes)
    starts, ends = groups.ranges(keys_of(left.columns(common), [sizes[i] for i in common]))
    members, owners = spread(starts, ends, limit)
    chosen = groups.order[members]
    rows = np.concatenate([left.rows[owners], right.columns(added)[chosen]], axis=1)
    weights = left.weights[owners] * right.weights[chosen]
    return Relation((*left.positions, *added), rows, weights)


def summed(relation: Relation, positions: tuple[int, ...], sizes: Sequence[int]) -> Relation:
    """Keep the columns of `positions` and add up the weights of rows that are then equal."""
    groups = Groups.of(relation, positions, sizes)
    rows = relation.columns(positions)[groups.order[groups.firsts]]
    if not len(rows):
        return Relation(positions, rows, relation.weights)
    return Relation(positions, rows, np.add.reduceat(relation.weights[groups.order], groups.firsts))
