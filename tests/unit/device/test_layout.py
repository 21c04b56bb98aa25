"""Where arrays lie: aligned, guarded on both sides, and in the kernel's order of parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tuner.device.layout import (
    ALIGNMENT,
    GUARD_BYTES,
    Layout,
    decode,
    lay_out,
    plausible_byte,
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


def test_every_array_has_a_whole_guard_on_both_sides(layout: Layout) -> None:
    assert len(layout.guards) == len(layout.slots) + 1
    assert all(stop - start >= GUARD_BYTES for start, stop in layout.guards)


def test_the_order_is_the_kernels_with_scalars_by_value(layout: Layout) -> None:
    assert layout.order == ("y", ("int32", 15), "x", "state", ("float32", 0.5), "room")


def test_slots_are_found_by_role(layout: Layout) -> None:
    assert [slot.name for slot in layout.with_role("output", "inout")] == ["y", "state"]
    assert [slot.name for slot in layout.with_role("scratch")] == ["room"]


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


@pytest.mark.parametrize(("dtype", "value"), [("int32", "T * 2 ** 30"), ("uint8", "T - 6")])
def test_a_scalar_that_its_type_cannot_hold_is_refused(
    make_spec: MakeSpec, dtype: str, value: str
) -> None:
    with pytest.raises(KernelError, match=f"which {dtype} cannot hold") as caught:
        lay_out(make_spec(("s", dtype, value)), {"T": 5})
    assert caught.value.line == 12


def test_a_half_precision_scalar_is_refused(make_spec: MakeSpec) -> None:
    with pytest.raises(KernelError, match="cannot be passed by value"):
        lay_out(make_spec(("s", "bfloat16", "1.0")), {"T": 5})


def test_a_fraction_for_an_integer_is_refused(make_spec: MakeSpec) -> None:
    with pytest.raises(ExpressionError, match="whole number"):
        lay_out(make_spec(("s", "int32", "T / 2")), {"T": 5})


@pytest.mark.parametrize("rows", ["T // 8", "T - 9"])
def test_an_array_without_elements_is_refused(make_spec: MakeSpec, rows: str) -> None:
    spec = make_spec(("y", "float32", (rows, "4"), "output"))
    with pytest.raises(KernelError, match=r"'y' has the shape \(.*, 4\) for T=5") as caught:
        lay_out(spec, {"T": 5})
    assert caught.value.remedy is not None


@pytest.mark.parametrize("dtype", sorted(FLOAT_DTYPES))
def test_a_plausible_byte_makes_a_number_of_every_float_format(dtype: str) -> None:
    chosen = {plausible_byte() for _ in range(2000)}
    assert len(chosen) > 20, "a kernel must not be able to know it"
    stored = storage_dtype(dtype)
    raw = np.array([[byte] * stored.itemsize for byte in chosen], np.uint8).view(stored)
    assert (decode(np, raw, dtype) > 0).all()
    assert np.isfinite(decode(np, raw, dtype)).all()
