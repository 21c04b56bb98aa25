"""The comparison in one pass on the GPU says what the one in NumPy says."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.device.encoding import GPU_PIECE, LARGEST, STORAGE, decode, encode, storage_dtype
from tuner.device.verify.accuracy import DOUBLE, SINGLE, measure, scale_of
from tuner.device.verify.bits import digest
from tuner.device.verify.on_gpu import Output, largest_error, look
from tuner.device.verify.outputs import compare
from tuner.model.kernel import DTYPE_BYTES, FLOAT_DTYPES, Tolerance

TOLERANCES = (Tolerance(1e-2, 1e-6), Tolerance(4e-3), Tolerance(0.0, 0.5), Tolerance(0.0, 0.0))
SIZE = 20_000


def random_bits(rng: np.random.Generator, dtype: str) -> np.ndarray:
    stored = np.dtype(storage_dtype(dtype))
    if dtype == "bool":
        return rng.integers(0, 2, SIZE).astype(np.bool_)
    return np.frombuffer(rng.bytes(SIZE * stored.itemsize), stored).copy()


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
@pytest.mark.parametrize("tolerance", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", ["near", "equal", "specials"])
def test_both_comparisons_agree(dtype: str, tolerance: Tolerance, case: str) -> None:
    import cupy

    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        raw = random_bits(rng, dtype)
        reference = decode(np, raw, dtype).astype(np.float64)
        if case == "near":
            reference *= 1 + rng.normal(0, 2e-3, SIZE)
        if case == "specials":
            largest = LARGEST.get(dtype, 1e9) if dtype in FLOAT_DTYPES else 1e9
            table = [np.nan, np.inf, -np.inf, 0.0, -0.0, largest, -largest, 2 * largest]
            reference = rng.choice(table, SIZE)
        expected = compare(np, raw, reference, dtype, tolerance).error
        found = largest_error(cupy.asarray(raw), cupy.asarray(reference), dtype, tolerance)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "int8", "uint8"])
@pytest.mark.parametrize("case", ["near", "a few off", "far", "specials"])
def test_both_count_codes_alike(dtype: str, case: str) -> None:
    import cupy

    rng, tolerance = np.random.default_rng(8), Tolerance(codes=0.02)
    raw = random_bits(rng, dtype)
    reference = decode(np, raw, dtype)
    numbers = np.isfinite(reference)
    raw, reference = raw[numbers], reference[numbers]
    if case == "specials":
        reference[::50] = np.nan
    else:
        off = {"near": 0.0, "a few off": 0.06, "far": 4.0}[case]
        reference[::64] *= 1 + off
        reference[1::64] += off
    with np.errstate(all="ignore"):
        expected = compare(np, raw, reference, dtype, tolerance)
        output = Output(cupy.asarray(raw), cupy.asarray(reference), dtype, tolerance)
        _, (found,) = look(cupy.zeros(1, cupy.uint8), cupy.asarray([(0, 1)]), 0, (), [output])
    assert (found <= 1.0) == expected.passed
    if expected.passed:
        assert found == pytest.approx(expected.error)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("copied", [False, True])
def test_both_count_roundings_alike(dtype: str, copied: bool) -> None:
    import cupy

    rng = np.random.default_rng(5)
    reference = rng.standard_normal(SIZE + 33)
    scale = np.abs(reference) * 2.0**-24 + 2.0**-126
    raw = encode(np, reference * (1.0 + rng.standard_normal(SIZE + 33) * 2.0**-9), dtype)
    expected = measure(np, raw, reference, scale, dtype, copied=copied)
    found = measure(cupy, *map(cupy.asarray, (raw, reference, scale)), dtype, copied=copied)
    assert found.block == pytest.approx(expected.block, rel=1e-9)
    assert found.element == pytest.approx(expected.element, rel=1e-9)


@pytest.mark.parametrize("unit", [SINGLE, DOUBLE])
def test_both_find_what_a_rounding_is(unit: float) -> None:
    import cupy

    rng = np.random.default_rng(5)
    reference = rng.standard_normal((7, 300)).T
    nearby = reference * (1.0 + rng.standard_normal((300, 7)) * 2.0**-20)
    reference[:3, :3], nearby[1:4, 1:4] = np.nan, np.inf
    with np.errstate(all="ignore"):
        expected = scale_of(np, reference, nearby.copy(), unit)
    found = scale_of(cupy, cupy.asarray(reference), cupy.asarray(nearby), unit)
    assert (found.get() == expected).all()


def test_touched_memory_is_told_from_untouched() -> None:
    import cupy

    data = cupy.zeros(20_000, cupy.uint8)
    guards = cupy.asarray([(0, 4096), (12_288, 20_000)])
    for start, stop in guards.get().tolist():
        data[start:stop] = 0x7B
    now, odd = data[4096:8192], data[8192:8201]
    pairs = [(now, now.copy()), (odd, odd.copy())]
    ones = cupy.ones(5, cupy.float32)
    off = cupy.asarray([1.0, 1.0, 1.5, 1.0, 1.0])
    outputs = [
        Output(ones, reference, "float32", Tolerance(0.1))
        for reference in (ones.astype(cupy.float64), off)
    ]
    same, (right, wrong) = look(data, guards, 0x7B, pairs, outputs)
    assert same
    assert right == 0.0
    assert wrong == pytest.approx(0.5 / 0.15)
    assert not look(data, guards, 0xFF, pairs, outputs)[0]
    for place in (0, 4095, 12_288, 19_999, 4096, 8191, 8192, 8200):
        kept = int(data[place])
        data[place] = 1
        assert not look(data, guards, 0x7B, pairs, outputs)[0], place
        data[place] = kept
    assert look(data, guards, 0x7B, pairs, outputs)[0]


@pytest.mark.parametrize("size", [1, 8, 4096, 1_000_003])
def test_both_digests_are_equal_and_change_with_a_bit(size: int) -> None:
    import cupy

    raw = np.frombuffer(np.random.default_rng(3).bytes(size), np.uint8).copy()
    before = digest(np, [raw])
    assert digest(cupy, [cupy.asarray(raw)]) == before
    raw[-1] ^= 0x80
    assert digest(cupy, [cupy.asarray(raw)]) == digest(np, [raw]) != before


@pytest.mark.parametrize("given", ["float32", "float64"])
@pytest.mark.parametrize("dtype", sorted(STORAGE))
def test_numbers_are_stored_with_the_bits_that_numpy_gives_them(dtype: str, given: str) -> None:
    """Where one pass of a kernel of its own does it, and in pieces where none does."""
    import cupy

    rng = np.random.default_rng(9)
    count = GPU_PIECE + 5 if (dtype, given) == ("bfloat16", "float64") else 1_000_003
    values = (rng.standard_normal(count) * 10.0 ** rng.uniform(-8, 8, count)).astype(given)
    # CuPy flushes float32's denormals to zero, which is no matter to who draws numbers.
    values[:7] = [0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-9, 3 * 2.0**-10]
    with np.errstate(all="ignore"):
        expected = encode(np, values, dtype)
        found = encode(cupy, cupy.asarray(values), dtype)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(found.get()[numbers], expected[numbers])
    assert np.isnan(decode(np, found.get()[~numbers], dtype)).all()
