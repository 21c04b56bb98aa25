"""What passes for the same outputs, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.extensions.compat.tuning import Judge

ONES = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("dtype", "right", "wrong"),
    [("float32", 1e-5, 1e-3), ("bfloat16", 1e-2, 0.1), ("float8_e4m3fn", 0.1, 0.3)],
)
def test_configs_may_differ_by_the_rounding_of_their_dtype(
    dtype: str, right: float, wrong: float
) -> None:
    judge = Judge([ONES], is_answer=False, dtypes=[dtype])
    assert judge.fault([ONES + np.float32(right)]) == ""
    assert "unlike the first config" in judge.fault([ONES + np.float32(wrong)])


def test_whole_numbers_and_nan_are_compared_as_they_are() -> None:
    whole = Judge([np.array([2**62 + 1])], is_answer=False)
    assert whole.fault([np.array([2**62 + 1])]) == ""
    assert whole.fault([np.array([2**62])]) == (
        "argument 0: [0] is 4611686018427387904, expected 4611686018427387905 "
        "(1 elements differ), unlike the first config"
    )
    nan = np.array([np.nan, np.inf, 1.0])
    assert Judge([nan], is_answer=False).fault([nan]) == ""
    assert Judge([nan]).fault([nan])  # as numpy.allclose has it
    assert "shape" in Judge([ONES]).fault([ONES[:2]])
