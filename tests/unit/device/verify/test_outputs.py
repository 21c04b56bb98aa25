"""Is the output right? Truth tables over single elements, then whole arrays."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from tuner.device import encoding
from tuner.device.encoding import decode, encode
from tuner.device.verify.outputs import Verdict, compare, zeros_pass
from tuner.model.kernel import Tolerance

TOLERANCE = Tolerance(relative=1e-2, absolute=1e-3)
EXACT = Tolerance()


def judged(
    found: object, expected: object, dtype: str = "float32", tolerance: Tolerance = TOLERANCE
) -> Verdict:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        raw = encode(np, np.atleast_1d(np.asarray(found, np.float64)), dtype)
        return compare(np, raw, np.atleast_1d(np.asarray(expected, np.float64)), dtype, tolerance)


def zeros_would_pass(
    expected: object, dtype: str = "float32", tolerance: Tolerance = TOLERANCE
) -> bool:
    ref = np.atleast_1d(np.asarray(expected, np.float64))
    return zeros_pass(np, encode(np, ref, dtype), ref, dtype, tolerance)


@pytest.mark.parametrize(
    ("found", "expected", "right"),
    [
        (1.0, 1.0, True),
        (1.0105, 1.0, True),
        (1.0115, 1.0, False),
        (-1.0, 1.0, False),
        (0.0009, 0.0, True),
        (0.0011, 0.0, False),
        (0.0, -0.0, True),
        (nan, nan, True),
        (nan, 1.0, False),
        (1.0, nan, False),
        (inf, inf, True),
        (-inf, -inf, True),
        (-inf, inf, False),
        (1e30, inf, False),
        (3.4e38, inf, False),  # the largest number where the reference says more
        (inf, 1.0, False),
        (inf, 1e39, True),  # float32 holds at most 3.4e38
        (-inf, 1e39, False),
        (nan, inf, False),
        (inf, nan, False),
    ],
)
def test_one_element_is_right_or_wrong(found: float, expected: float, right: bool) -> None:
    assert judged(found, expected).passed is right
    assert judged([1.0, found, 1.0], [1.0, expected, 1.0]).passed is right


def test_the_error_is_in_units_of_the_tolerance() -> None:
    assert judged(1.0055, 1.0).error == pytest.approx(0.5, rel=1e-4)
    assert judged(1.022, 1.0).error == pytest.approx(2.0, rel=1e-4)
    assert judged(nan, 1.0).error == inf


@pytest.mark.parametrize("chunk", [1, 7, 24, 1 << 24])
def test_a_wrong_element_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(encoding, "CPU_PIECE", chunk)
    expected = np.random.default_rng(1).standard_normal((2, 3, 4)) + 10.0
    found = encode(np, expected, "float32")
    found[1, 0, 3] *= 1.05
    verdict = compare(np, found, expected, "float32", TOLERANCE)
    assert not verdict.passed
    assert np.unravel_index(verdict.worst[0], expected.shape) == (1, 0, 3)
    assert verdict.describe("out", expected.shape).startswith("out[1, 0, 3] is ")
    assert verdict.worst[2] == expected[1, 0, 3]
    assert verdict.worst[1] == found[1, 0, 3]
    found[1, 0, 3], found[1, 2, 3] = expected[1, 0, 3], nan
    assert compare(np, found, expected, "float32", TOLERANCE).worst[0] == 23, "the last one"


def test_the_worst_element_is_reported_not_the_first() -> None:
    verdict = judged([1.05, 1.0, 1.2, 1.1], [1.0] * 4)
    assert verdict.worst[0] == 2
    assert verdict.describe("y", (4,)) == "y[2] is 1.2, expected 1 (18.2 times the tolerance)"


def test_a_tolerance_that_zeros_pass_is_noticed() -> None:
    small = [1e-4, -5e-4, 9e-4, 0.0, 1e-5]
    assert zeros_would_pass(small)
    assert zeros_would_pass([*small, 1.0]), "for most elements it says nothing"
    assert not zeros_would_pass([*small, 1.0, 2.0, 3.0, 4.0])
    assert not zeros_would_pass([0.0] * 9 + [1.0]), "zeros that are right tell nothing"
    for special in ([nan, nan], [0.0, inf], [0.0, nan]):
        assert not zeros_would_pass(special)
    assert zeros_would_pass([0, 0], "int32", EXACT)
    assert not zeros_would_pass([0, 1], "int32", EXACT)
    tiny = 2.0**-9  # the smallest number of float8_e4m3
    assert zeros_would_pass([tiny] * 8, "float8_e4m3", Tolerance(codes=1.0))
    assert not zeros_would_pass(coded("float8_e4m3")[1], "float8_e4m3", Tolerance(codes=1.0))


@pytest.mark.parametrize("tolerance", [EXACT, Tolerance(codes=0.0)])
def test_exact_integers_are_equal_or_wrong(tolerance: Tolerance) -> None:
    expected = np.arange(-5, 5)
    found = expected.astype(np.int32)
    assert compare(np, found, expected.astype(np.float64), "int32", tolerance).passed
    found[7] += 1
    verdict = compare(np, found, expected.astype(np.float64), "int32", tolerance)
    assert not verdict.passed
    assert verdict.worst[0] == 7


def test_a_reference_of_booleans_or_integers_serves_too() -> None:
    flags = np.array([True, False, True])
    assert compare(np, flags, flags, "bool", EXACT).passed
    assert not compare(np, ~flags, flags, "bool", EXACT).passed
    ids = np.array([3, 1, 2])
    assert compare(np, ids.astype(np.int32), ids, "int32", EXACT).passed


CODED = ["float8_e4m3", "float8_e5m2", "int8", "bfloat16", "float16"]


def coded(dtype: str, count: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Numbers between 16 and 32 as stored, and as the reference gives them."""
    values = np.random.default_rng(3).uniform(16.5, 31.5, count)
    return encode(np, values, dtype), values


def shifted(stored: np.ndarray, where: slice, codes: int) -> np.ndarray:
    changed = stored.copy()
    changed.view(f"i{stored.itemsize}")[where] += codes
    return changed


@pytest.mark.parametrize("dtype", CODED)
def test_a_share_of_elements_may_be_one_code_off(dtype: str) -> None:
    stored, expected = coded(dtype)
    tolerance = Tolerance(codes=0.01)
    assert compare(np, stored, expected, dtype, tolerance).error == 0.0
    ten = compare(np, shifted(stored, slice(0, 10), 1), expected, dtype, tolerance)
    assert ten.error == pytest.approx(1.0)
    assert ten.passed
    assert not compare(np, shifted(stored, slice(0, 11), -1), expected, dtype, tolerance).passed
    two = compare(np, shifted(stored, slice(5, 6), 2), expected, dtype, Tolerance(codes=0.5))
    assert not two.passed, "no element may be two codes off"
    assert two.worst[0] == 5
    exact = Tolerance(codes=0.0)
    assert compare(np, stored, expected, dtype, exact).passed
    assert not compare(np, shifted(stored, slice(0, 1), 1), expected, dtype, exact).passed


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "int8"])
def test_halfway_either_neighbour_is_right(dtype: str) -> None:
    every = np.arange(256, dtype=np.uint8).view(encode(np, np.zeros(1), dtype).dtype)
    values = np.unique(decode(np, every, dtype))
    values = values[np.isfinite(values)]
    exact, middles = Tolerance(codes=0.0), (values[:-1] + values[1:]) / 2
    for expected in (middles, middles * (1 + 2.0**-23), middles * (1 - 2.0**-23)):
        for neighbour in (values[:-1], values[1:]):
            assert compare(np, encode(np, neighbour, dtype), expected, dtype, exact).passed
    apart = middles[middles > 0] * (1 + 2.0**-20)
    below = encode(np, values[:-1][middles > 0], dtype)
    assert compare(np, below, apart, dtype, exact).error == inf
    assert compare(np, below, apart, dtype, Tolerance(codes=1.0)).error == 1.0, "all are one off"


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "int8"])
def test_the_quick_way_agrees_with_the_codes(dtype: str) -> None:
    largest = 128.4 if dtype == "int8" else 1e6
    rng = np.random.default_rng(4)
    scale = np.float64(2.0) ** rng.integers(-20, 20, 4000)
    values = np.clip(rng.standard_normal(4000) * scale, -largest, largest)
    stored = encode(np, values.clip(-128, 127) if dtype == "int8" else values, dtype)
    moved = stored.copy()
    moved[::7] += np.asarray(1, stored.dtype)
    apart = encoding.codes_apart(np, moved, values, dtype)
    with np.errstate(invalid="ignore"):
        assert (apart == encoding._distance(np, moved, values, dtype)).mean() > 0.999
    assert apart[:1] > 0


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "int8"])
def test_the_bounds_of_neighbours_say_what_is_one_code_away(dtype: str) -> None:
    every = np.arange(256, dtype=np.uint8)
    stored = every.view(encode(np, np.zeros(1), dtype).dtype)
    low, high, lower, higher = encoding.rounded_to(dtype)
    numbers = np.isfinite(decode(np, stored, dtype))
    rng = np.random.default_rng(5)
    near = decode(np, stored[numbers], dtype) * (1 + 0.3 * rng.standard_normal(numbers.sum()))
    for value in near.clip(-127.4, 127.4) if dtype == "int8" else near:
        apart = encoding._distance(np, stored[numbers], np.full(numbers.sum(), value), dtype)
        inside = (low[numbers] <= value) & (value <= high[numbers])
        beside = (lower[numbers] <= value) & (value <= higher[numbers])
        assert (inside == (apart == 0)).all()
        assert (beside == (apart <= 1)).all()


@pytest.mark.parametrize("chunk", [3, 1 << 24])
def test_the_share_is_that_of_the_whole_array(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(encoding, "CPU_PIECE", chunk)
    stored, expected = coded("float8_e4m3", 10)
    found = shifted(stored, slice(0, 2), 1)
    assert compare(np, found, expected, "float8_e4m3", Tolerance(codes=0.2)).passed
    assert not compare(np, found, expected, "float8_e4m3", Tolerance(codes=0.1)).passed


@pytest.mark.parametrize(
    ("dtype", "largest", "beyond"), [("float8_e4m3", 0x7E, 0x7F), ("float8_e5m2", 0x7B, 0x7C)]
)
def test_nan_and_infinity_are_no_rounding_of_the_largest_number(
    dtype: str, largest: int, beyond: int
) -> None:
    expected = np.full(100, 1e6)
    found = np.full(100, largest, np.uint8)
    assert compare(np, found, expected, dtype, Tolerance(codes=0.5)).passed
    found[3] = beyond
    assert not compare(np, found, expected, dtype, Tolerance(codes=0.5)).passed


def test_codes_of_nan_agree_whatever_their_bits() -> None:
    expected = np.array([1.0, nan, nan])
    found = np.array([encode(np, np.array([1.0]), "float8_e5m2")[0], 0x7D, 0xFF], np.uint8)
    assert compare(np, found, expected, "float8_e5m2", Tolerance(codes=0.1)).passed
    assert not compare(np, found, np.ones(3), "float8_e5m2", Tolerance(codes=0.9)).passed
