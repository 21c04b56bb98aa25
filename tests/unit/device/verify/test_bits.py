"""Digests of outputs: every bit counts, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.device.verify import bits
from tuner.device.verify.bits import DIGEST_DIGITS, digest, digest_rows


def of(*arrays: np.ndarray) -> str:
    return digest(np, [array.view(np.uint8) for array in arrays])


def test_equal_bits_have_one_digest_and_no_arrays_have_none() -> None:
    values = np.arange(1000, dtype=np.float32)
    assert of(values) == of(values.copy())
    assert len(of(values)) == DIGEST_DIGITS
    assert digest(np, []) == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([0.0, 1.0]), np.array([-0.0, 1.0])),
        (
            np.array([0x7FC00000, 0], np.uint32).view(np.float32),
            np.array([0x7FC00001, 0], np.uint32).view(np.float32),
        ),
        (np.array([1.0, 2.0]), np.array([2.0, 1.0])),
        (np.zeros(3, np.uint8), np.zeros(4, np.uint8)),
        (np.zeros(8, np.uint8), np.zeros(16, np.uint8)),
        (np.array([1, 2, 3], np.uint8), np.array([1, 2, 4], np.uint8)),
    ],
    ids=["negative zero", "NaN", "order", "odd length", "length", "odd bytes"],
)
def test_any_other_bit_has_another_digest(one: np.ndarray, other: np.ndarray) -> None:
    assert of(one) != of(other)


def test_of_several_outputs_the_order_counts() -> None:
    one, other = np.zeros(4), np.ones(4)
    assert of(one, other) != of(other, one)


def test_long_arrays_are_digested_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).bytes(8 * 100)
    whole = of(np.frombuffer(values, np.uint8))
    monkeypatch.setattr(bits, "CHUNK_WORDS", 7)
    assert of(np.frombuffer(values, np.uint8)) == whole


@pytest.mark.parametrize("width", [1, 4, 5])
def test_a_row_has_the_digest_that_it_has_as_an_array(width: int) -> None:
    values = np.random.default_rng(2).standard_normal((width, 6)).astype(np.float32)
    rows = values.T
    alone = [digest(np, [np.ascontiguousarray(row)]) for row in rows]
    assert digest_rows(np, [rows]) == alone
    both = digest_rows(np, [rows, rows[:, :1]])
    assert len({*both, *alone}) == 12
