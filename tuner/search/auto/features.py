"""Numeric columns of configs: what a model can measure distances and split along."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tuner.model.config import Parameter
    from tuner.model.expressions import Value

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Vector = np.ndarray[Any, np.dtype[np.float64]]


class ConfigColumns:
    """Turn rows of value indices into numbers from 0 to 1; parameters of one value are left out.

    Positive numbers are taken as logarithms, other numbers by their rank, switches as 0 and 1, and
    every text as a column of its own. Integers that are not all powers of two get a second column:
    how often two divides them, which decides alignment and whole warps. In `products` come the
    logarithms of the products of two parameters, and of all (threads of a block, bytes of a thread,
    volume of a tile); their quotients need no column, as sums and parts give them.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._tables: list[tuple[int, Vector]] = []
        logarithms = []
        for position, parameter in enumerate(parameters):
            if len(parameter.values) < 2:
                continue
            self._tables += [(position, _scaled(table)) for table in _tables(parameter.values)]
            if _positive(parameter.values):
                logarithms.append((position, np.log2(np.array(parameter.values, dtype=float))))
        groups = [list(pair) for pair in combinations(logarithms, 2)]
        self._products = [*groups, logarithms] if len(logarithms) > 2 else groups

    def of(self, rows: np.ndarray[Any, Any]) -> Matrix:
        """Return the parameters' own columns, `[configs, columns]`."""
        return _stack([table[rows[:, position]] for position, table in self._tables], len(rows))

    def products(self, rows: np.ndarray[Any, Any]) -> Matrix:
        """Return the logarithms of products, in doublings, `[configs, products]`."""
        sums = [
            np.sum([table[rows[:, position]] for position, table in group], axis=0)
            for group in self._products
        ]
        return _stack(sums, len(rows))


def _tables(values: Sequence[Value]) -> Iterator[Vector]:
    """Yield, for each column of a parameter, its number for every value."""
    if any(isinstance(value, str) for value in values):
        codes = np.eye(len(values))
        # the second of two categories says nothing that the first does not
        yield from codes[:1] if len(values) == 2 else codes / np.sqrt(2)
        return
    numbers = np.array(values, dtype=float)
    if not _positive(values):
        yield np.argsort(np.argsort(numbers)).astype(float)
        return
    yield np.log2(numbers)
    if all(isinstance(value, int) for value in values):
        twos = np.array([(int(value) & -int(value)).bit_length() for value in values], dtype=float)
        whole = all(int(value) & (int(value) - 1) == 0 for value in values)
        if not whole and len(set(twos.tolist())) > 1:
            yield twos


def _positive(values: Sequence[Value]) -> bool:
    return all(not isinstance(v, bool | str) and v > 0 for v in values)


def _scaled(table: Vector) -> Vector:
    low, high = float(table.min()), float(table.max())
    if low >= 0 and high < 1:  # a share of a one-hot code keeps its length
        return table
    return (table - low) / (high - low)


def _stack(columns: Sequence[Vector], count: int) -> Matrix:
    return np.column_stack(columns) if columns else np.zeros((count, 0))
