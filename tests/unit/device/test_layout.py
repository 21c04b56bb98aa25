"""Where arrays lie and how numbers are stored: guarded, aligned, rounded as the formats say."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tuner.device.layout import (
    ALIGNMENT,
    GUARD_BYTES,
    LARGEST,
    NAN_BYTE,
    PAGE_BYTES,
    SMALLEST_NORMAL,
    Layout,
    code_distance,
    decode,
    encode,
    fill_byte,
    lay_out,
    storage_dtype,
)
from tuner.model.errors import ExpressionError, KernelError
from tuner.model.kernel import FLOAT_DTYPES, KernelSpec

MakeSpec = Callable[..., KernelSpec]
ARGUMENTS = (
    ("y", "bfloat16", ("T", "3"), "output"),
    ("n", "int32", "T * 3"),
    ("x", "float8_e4m3", ("T",), "input"),
    ("state", "float64", ("T", "2", "5"), "inout"),
    ("eps", "float32", "0.5"),
    ("room", "int8", ("7",), "scratch"),
)


@pytest.fixture
def layout(make_spec: MakeSpec) -> Layout:
    return lay_out(make_spec(*ARGUMENTS), {"T": 5})


def test_every_array_has_its_size_and_starts_aligned(layout: Layout) -> None:
    assert [(slot.name, slot.shape, slot.size_bytes) for slot in layout.slots] == [
        ("y", (5, 3), 30),
        ("x", (5,), 5),
        ("state", (5, 2, 5), 400),
        ("room", (7,), 7),
    ]
    assert all(slot.offset % ALIGNMENT == 0 for slot in layout.slots)
    assert layout.footprint_bytes == 442


def test_guards_and_arrays_cover_every_byte_once(layout: Layout) -> None:
    covered = bytearray(layout.total_bytes)
    ranges = [(slot.offset, slot.offset + slot.size_bytes) for slot in layout.slots]
    for start, stop in (*ranges, *layout.guards):
        for byte in range(start, stop):
            covered[byte] += 1
    assert set(covered) == {1}
    assert len(layout.guards) == len(layout.slots) + 1
    assert all(stop - start >= GUARD_BYTES for start, stop in layout.guards)


def test_arrays_by_pages_end_with_a_page_and_leave_pages_between(make_spec: MakeSpec) -> None:
    layout = lay_out(make_spec(*ARGUMENTS), {"T": 5}, by_pages=True)
    ends = [0]
    for slot in layout.slots:
        first, last = layout.pages(slot)
        assert first - ends[-1] >= PAGE_BYTES
        assert first % PAGE_BYTES == last % PAGE_BYTES == slot.offset % ALIGNMENT == 0
        assert first <= slot.offset
        assert 0 <= last - slot.offset - slot.size_bytes < ALIGNMENT
        ends.append(last)
    assert layout.total_bytes - ends[-1] >= PAGE_BYTES


def test_the_order_is_the_kernels_with_scalars_by_value(layout: Layout) -> None:
    assert layout.order == ("y", ("int32", 15), "x", "state", ("float32", 0.5), "room")
    assert [slot.name for slot in layout.with_role("output", "inout")] == ["y", "state"]


@pytest.mark.parametrize(
    ("dtype", "value", "passed"),
    [
        ("int64", "T * 2 ** 40", 5 * 2**40),
        ("int32", "T / 5", 1),
        ("uint8", "250 + T", 255),
        ("float64", "T", 5.0),
        ("bool", "T > 3", True),
        ("bool", "T > 7", False),
    ],
)
def test_a_scalar_has_the_type_that_it_is_declared_with(
    make_spec: MakeSpec, dtype: str, value: str, passed: float
) -> None:
    layout = lay_out(make_spec(("s", dtype, value)), {"T": 5})
    assert layout.order == ((dtype, passed),)
    assert type(layout.order[0][1]) is type(passed)


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("int32", "T * 2 ** 30", "which int32 cannot hold"),
        ("uint8", "T - 6", "which uint8 cannot hold"),
        ("bfloat16", "1.0", "cannot be passed by value"),
        ("int32", "T / 2", "whole number"),
    ],
)
def test_a_scalar_that_its_type_cannot_hold_is_refused(
    make_spec: MakeSpec, dtype: str, value: str, message: str
) -> None:
    with pytest.raises((KernelError, ExpressionError), match=message) as caught:
        lay_out(make_spec(("s", dtype, value)), {"T": 5})
    assert isinstance(caught.value, ExpressionError) or caught.value.line == 12


@pytest.mark.parametrize("rows", ["T // 8", "T - 9"])
def test_an_array_without_elements_is_refused(make_spec: MakeSpec, rows: str) -> None:
    spec = make_spec(("y", "float32", (rows, "4"), "output"))
    with pytest.raises(KernelError, match=r"'y' has the shape \(.*, 4\) for T=5") as caught:
        lay_out(spec, {"T": 5})
    assert caught.value.remedy is not None


@pytest.mark.parametrize("dtype", sorted(FLOAT_DTYPES))
def test_a_fill_is_nan_or_a_number_of_every_float_format(dtype: str) -> None:
    assert 0.1 < sum(fill_byte() == NAN_BYTE for _ in range(2000)) / 2000 < 0.4
    chosen = {fill_byte(nan=False) for _ in range(2000)}
    assert len(chosen) > 20, "a kernel must not be able to know it"
    assert len({fill_byte(other_than=NAN_BYTE) for _ in range(99)} - {NAN_BYTE}) > 9
    stored = storage_dtype(dtype)
    raw = np.array([[byte] * stored.itemsize for byte in chosen], np.uint8).view(stored)
    assert (decode(np, raw, dtype) > 0).all()
    assert np.isfinite(decode(np, raw, dtype)).all()


THEIRS = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
NAMES = list(THEIRS)


def all_codes(dtype: str) -> np.ndarray:
    storage = storage_dtype(dtype)
    return np.arange(2 ** (8 * storage.itemsize)).astype(storage)


def our_values(codes: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return decode(np, codes, dtype)


@pytest.mark.parametrize("dtype", NAMES)
def test_every_code_has_the_value_that_others_give_it_and_comes_back(dtype: str) -> None:
    codes = all_codes(dtype)
    values = our_values(codes, dtype)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(THEIRS[dtype]).astype(np.float64)
    np.testing.assert_array_equal(values, theirs)
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(values[numbers]), np.signbit(theirs[numbers]))
    kept = np.isfinite(values) | (np.isinf(values) & (dtype == "bfloat16"))
    np.testing.assert_array_equal(encode(np, values[kept], dtype), codes[kept])
    special = np.array([np.nan, -np.nan, 1.0, 0.0, -0.0])
    back = our_values(encode(np, special, dtype), dtype)
    assert np.isnan(back).tolist() == [True, True, False, False, False]
    assert np.signbit(back[3:]).tolist() == [False, True]


@pytest.mark.parametrize("dtype", NAMES)
def test_random_numbers_round_as_others_round_them(dtype: str) -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 400_000, dtype=np.uint32)
    values = bits.view(np.float32)
    inside = values[np.abs(values) <= LARGEST[dtype]]  # false for NaN too
    spread = np.random.default_rng(2).standard_normal(100_000).astype(np.float32) * 100
    for numbers in (inside, spread[np.abs(spread) <= LARGEST[dtype]]):
        theirs = numbers.astype(THEIRS[dtype]).view(storage_dtype(dtype))
        np.testing.assert_array_equal(encode(np, numbers, dtype), theirs)


@pytest.mark.parametrize("dtype", NAMES)
def test_halfway_numbers_round_to_the_even_code(dtype: str) -> None:
    positive = all_codes(dtype)[: 2 ** (8 * storage_dtype(dtype).itemsize - 1)]
    values = our_values(positive, dtype)
    codes = positive[:-1][np.isfinite(values[:-1]) & np.isfinite(values[1:])].astype(np.int64)
    middles = (values[codes] + values[codes + 1]) / 2
    even = np.where(codes % 2 == 0, codes, codes + 1)
    sign = 1 << (8 * storage_dtype(dtype).itemsize - 1)
    np.testing.assert_array_equal(encode(np, middles, dtype), even)
    np.testing.assert_array_equal(encode(np, -middles, dtype), even | sign)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("value", [1e4 * 57344.0, np.inf, 1e300])
def test_fp8_saturates(dtype: str, value: float) -> None:
    found = decode(np, encode(np, np.array([value, -value]), dtype), dtype)
    assert found.tolist() == [LARGEST[dtype], -LARGEST[dtype]]


def test_bfloat16_overflows_to_infinity() -> None:
    stored = encode(np, np.array([3.4e38, -3.4e38, np.inf], np.float32), "bfloat16")
    assert decode(np, stored, "bfloat16").tolist() == [np.inf, -np.inf, np.inf]


@pytest.mark.parametrize("dtype", NAMES)
def test_the_ends_of_the_range_are_those_of_others(dtype: str) -> None:
    theirs = ml_dtypes.finfo(THEIRS[dtype])
    assert LARGEST[dtype] == float(theirs.max)
    assert SMALLEST_NORMAL[dtype] == float(theirs.smallest_normal)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_ends_of_numpys_own_types_are_numpys(dtype: str) -> None:
    assert LARGEST[dtype] == float(np.finfo(dtype).max)
    assert SMALLEST_NORMAL[dtype] == float(np.finfo(dtype).smallest_normal)
    stored = encode(np, np.array([LARGEST[dtype], SMALLEST_NORMAL[dtype]]), dtype)
    assert stored.dtype == dtype
    assert decode(np, stored, dtype).tolist() == [LARGEST[dtype], SMALLEST_NORMAL[dtype]]


def test_integers_round_to_even_and_keep_their_type() -> None:
    stored = encode(np, np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.7]), "int8")
    assert stored.dtype == np.int8
    assert stored.tolist() == [0, 2, 2, 0, -2, 127]
    assert decode(np, stored, "int8").tolist() == [0, 2, 2, 0, -2, 127]
    assert encode(np, np.array([0.0, 1.0]), "bool").tolist() == [False, True]


@pytest.mark.parametrize("dtype", [*NAMES, "float16", "float32"])
def test_neighbours_are_one_code_apart_across_zero_too(dtype: str) -> None:
    a, b = (encode(np, np.array(ends), dtype) for ends in ([1.0, 0.0, 1.0], [1.0, -0.0, -1.0]))
    one = int(a.view(f"u{a.itemsize}")[0])
    assert code_distance(np, a, b, dtype).tolist() == [0, 0, 2 * one]
    small = encode(np, np.array([SMALLEST_NORMAL[dtype]]), dtype)
    following = (small.view(f"u{small.itemsize}") + 1).view(small.dtype)
    assert code_distance(np, small, following, dtype).tolist() == [1]


def test_integers_are_as_far_apart_as_they_differ() -> None:
    a, b = np.array([-128, 5], np.int8), np.array([127, 5], np.int8)
    assert code_distance(np, a, b, "int8").tolist() == [255, 0]
