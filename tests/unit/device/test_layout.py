"""Where arrays lie: guarded and aligned."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tuner.device.encoding import (
    decode,
    storage_dtype,
)
from tuner.device.layout import (
    ALIGNMENT,
    GUARD_BYTES,
    NAN_BYTE,
    PAGE_BYTES,
    Layout,
    fill_byte,
    lay_out,
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
