"""Configs as rows of value indices: one column per parameter."""

from __future__ import annotations

from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.uint16]]
MAX_VALUES = 2**16


class TooManyRowsError(Exception):
    """Say that a table would not fit; the caller does without it."""


def no_rows(count: int) -> Rows:
    """Make an empty table for `count` parameters."""
    return np.empty((0, count), dtype=np.uint16)


def row_keys(rows: Rows) -> np.ndarray[Any, np.dtype[np.bytes_]]:
    """Make one key per row whose order is that of the rows, for any number of parameters."""
    count, width = rows.shape
    if not width:
        return np.zeros(count, dtype="S1")
    return np.ascontiguousarray(rows, dtype=">u2").view(f"S{2 * width}").reshape(count)
