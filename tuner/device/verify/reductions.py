"""Reductions of whole arrays by all of a GPU.

CuPy's own kernel gives each result to one block: one number of 67 million elements takes 131,000
steps of 512 threads, and its other way, CUB, a second to compile. So rows are reduced first.
"""

from __future__ import annotations

from typing import Any, Literal

from tuner.device.encoding import Array

# Of so many elements one block makes short work, and of as many rows.
ROW = 1 << 12


def reduce(xp: Any, how: Literal["all", "any", "max", "sum"], values: Array) -> Array:
    """Reduce all of an array to one number, which stays where the array lies."""
    function, flat = getattr(xp, how), values.reshape(-1)
    rows = flat.size // ROW
    if xp.__name__ == "numpy" or rows < 2:
        reduced: Array = function(flat)
        return reduced
    parts = function(flat[: rows * ROW].reshape(rows, ROW), axis=1)
    rest = flat[rows * ROW :]
    if rest.size:
        parts = xp.concatenate([parts, function(rest).reshape(1)])
    return reduce(xp, how, parts)


def find_largest(xp: Any, values: Array) -> int:
    """Find the place of the largest element, the first of several, in an array without NaN."""
    flat = values.reshape(-1)
    rows = flat.size // ROW
    if xp.__name__ == "numpy" or rows < 2:
        return int(xp.argmax(flat))
    tops = xp.max(flat[: rows * ROW].reshape(rows, ROW), axis=1)
    first = int(xp.argmax(tops)) * ROW
    best = first + int(xp.argmax(flat[first : first + ROW]))
    rest = flat[rows * ROW :]
    if rest.size:
        other = rows * ROW + int(xp.argmax(rest))
        best = other if bool(flat[other] > flat[best]) else best
    return best


def is_all(xp: Any, values: Array) -> bool:
    """Tell whether all elements are true."""
    return bool(reduce(xp, "all", values))


def is_any(xp: Any, values: Array) -> bool:
    """Tell whether any element is true, or not 0."""
    return bool(reduce(xp, "any", values))


def count(xp: Any, values: Array) -> int:
    """Count the elements that are true."""
    return int(reduce(xp, "sum", values))
