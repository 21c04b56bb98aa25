"""How many codes an output's bits are from those that its reference has."""

from __future__ import annotations

from functools import cache
from math import inf, nan
from typing import Any

import numpy as np

from tuner.device.encoding import Array, code_distance, decode, encode, storage_dtype
from tuner.model.kernel import FLOAT_DTYPES

# Four roundings of float32, relative: so close to the middle between two codes, a product with an
# inverse falls on either side, whatever the kernel does.
HALFWAY = 2.0**-22


def codes_apart(xp: Any, raw: Array, reference: Array, dtype: str) -> Array:
    """Count the codes between stored values and their references.

    Of 8 bits, either neighbour of what lies halfway between them is right, within `HALFWAY`.
    """
    if storage_dtype(dtype).itemsize > 1:
        return _distance(xp, raw, reference, dtype)
    low, high = map(xp.asarray, rounded_to(dtype)[:2])
    codes = raw.view(xp.uint8)
    # NaN is in no interval, so that the slow way looks at it too.
    others = xp.flatnonzero(~((low[codes] <= reference) & (reference <= high[codes])))
    apart = xp.zeros(raw.size)
    if others.size:
        apart[others] = _distance(xp, raw[others], reference[others], dtype)
    return apart


def _distance(xp: Any, raw: Array, reference: Array, dtype: str) -> Array:
    stored = encode(xp, reference, dtype)
    distance = code_distance(xp, raw, stored, dtype).astype(xp.float64)
    if dtype not in FLOAT_DTYPES:
        return distance
    # NaN and infinity lie one code beyond the largest number, and are no rounding error of it.
    out, ref = decode(xp, raw, dtype), decode(xp, stored, dtype)
    other_kind = (xp.isnan(out) != xp.isnan(ref)) | (xp.isinf(out) != xp.isinf(ref))
    distance = xp.where(other_kind, xp.inf, distance)
    return xp.where(xp.isnan(out) & xp.isnan(ref), 0.0, distance)


@cache
def rounded_to(dtype: str) -> Array:
    """Give the bounds of what may be stored as each of 256 codes, and as one of its neighbours.

    They are NaN for codes that stand for no number.
    """
    every = np.arange(256, dtype=np.uint8).view(storage_dtype(dtype))
    values = decode(np, every, dtype)
    finite = np.unique(values[np.isfinite(values)])
    middles = (finite[:-1] + finite[1:]) / 2
    low = np.concatenate([[-inf], middles - HALFWAY * np.abs(middles)])
    high = np.concatenate([middles + HALFWAY * np.abs(middles), [inf]])
    if dtype not in FLOAT_DTYPES:  # those of floats saturate
        low[0], high[-1] = finite[0] - 0.5, finite[-1] + 0.5
    place = np.searchsorted(finite, values).clip(max=finite.size - 1)
    bounds = low, high, np.r_[low[0], low[:-1]], np.r_[high[1:], high[-1]]
    return np.stack([np.where(np.isfinite(values), one[place], nan) for one in bounds])
