"""A reduction in two steps gives what one step gives."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tuner.device.encoding import ROW, count, find_largest, is_all, is_any, reduce

NAMES = ("all", "any", "argmax", "max", "sum", "concatenate")
GPU = SimpleNamespace(__name__="cupy", **{name: getattr(np, name) for name in NAMES})


@pytest.mark.parametrize("size", [1, ROW - 1, 2 * ROW, 3 * ROW + 5, 2 * ROW * ROW + 1])
def test_whatever_the_size(size: int) -> None:
    values = np.random.default_rng(size).integers(-9, 9, size)
    assert reduce(GPU, "max", values) == values.max()
    assert find_largest(GPU, values) == values.argmax()
    assert count(GPU, values > 3) == int((values > 3).sum())
    for at in (0, size // 2, size - 1):
        single = np.zeros(size, bool)
        single[at] = True
        assert is_any(GPU, single)
        assert find_largest(GPU, single) == at
        assert not is_all(GPU, ~single)
    assert is_all(GPU, np.ones((1, size), bool))
    assert not is_any(GPU, np.zeros(size))


def test_what_is_no_number_is_the_largest() -> None:
    values = np.zeros(3 * ROW)
    values[ROW + 1] = np.nan
    assert np.isnan(reduce(GPU, "max", values))
