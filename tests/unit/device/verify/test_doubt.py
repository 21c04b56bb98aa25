"""Where a rounding decides, what either side of it gives is right; everywhere else nothing is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.device.encoding import encode
from tuner.device.inputs import Prepared
from tuner.device.verify.accuracy import SINGLE, Leeway
from tuner.device.verify.answers import Moved, compute_moved, is_either, move, widen
from tuner.model.kernel import KernelSpec, Tolerance, Workload

Array = NDArray[np.float64]
Compute = Callable[[Mapping[str, Array]], dict[str, Array]]
SIZE = 4096


def loud(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Say which numbers are over half of the mean."""
    x = inputs["x"]
    return {"y": (x > x.mean() / 2).astype(np.float64)}


def gated(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Keep the numbers that are over half of the mean."""
    return {"y": inputs["x"] * loud(inputs)["y"]}


def first_largest(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"y": inputs["x"].reshape(-1, 64).argmax(axis=1).astype(np.float64)}


def drawn() -> Array:
    """Draw positive numbers, number 7 as near to half of the mean as float32 comes."""
    x = np.random.default_rng(3).uniform(0.1, 2.0, SIZE)
    for _ in range(60):
        x[7] = np.float32(x.mean() / 2)
    return x


def moved_of(compute: Compute, x: Array) -> Moved:
    return compute_moved(np, {"x": x}, ["x"], SINGLE, compute)


def is_right(compute: Compute, x: Array, found: Array) -> bool:
    reference = compute({"x": x})["y"]
    raw = encode(np, found, "int32")
    return is_either(np, raw, reference, "int32", lambda: moved_of(compute, x), "y")


def test_a_number_at_a_threshold_may_be_on_either_side_and_no_other() -> None:
    x = drawn()
    found = loud({"x": x})["y"]
    found[7] = 1.0 - found[7]
    assert is_right(loud, x, found)
    near = int(np.argsort(np.abs(x - x.mean() / 2))[1])
    found[near] = 1.0 - found[near]
    assert not is_right(loud, x, found)


def test_what_is_wrong_in_many_places_costs_no_reference() -> None:
    def never() -> Moved:
        pytest.fail("computed")

    reference = np.zeros(SIZE)
    raw = encode(np, reference + 1.0, "int32")
    assert not is_either(np, raw, reference, "int32", never, "y")


def test_of_two_nearly_equal_either_is_the_largest_and_of_equal_ones_the_first() -> None:
    x = np.random.default_rng(3).uniform(0.0, 1.0, SIZE)
    x[3], x[9] = 2.0, 2.0 * (1.0 + 2.0**-24)
    x[64 + 3] = x[64 + 9] = 2.0
    found = first_largest({"x": x})["y"]
    assert found[:2].tolist() == [9.0, 3.0]
    assert is_right(first_largest, x, np.array([3.0, *found[1:]]))
    assert not is_right(first_largest, x, np.array([9.0, 9.0, *found[2:]]))


def test_equal_numbers_are_moved_alike_and_others_both_ways() -> None:
    x = np.repeat(np.random.default_rng(3).standard_normal(512), 2)
    ways = move(np, x, 64.0, SINGLE) / x - 1.0
    assert (ways[::2] == ways[1::2]).all()
    assert np.allclose(np.abs(ways), 64.0 * SINGLE)
    assert 200 < int((ways[::2] > 0).sum()) < 312


@pytest.fixture
def spec(make_spec: Callable[..., KernelSpec]) -> KernelSpec:
    made = make_spec(("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))
    return replace(made, tolerances={"y": Tolerance(measured=True)})


def test_a_float_that_jumps_at_a_threshold_may_have_jumped_and_no_other(spec: KernelSpec) -> None:
    x, leeway = drawn(), Leeway(spec)
    prepared = Prepared(Workload.of({"T": SIZE}), "normal", 7, {}, gated({"x": x}))
    leeway.find_scales(np, prepared, {"x": x}, gated)

    def passes(found: Array) -> bool:
        raw = encode(np, found, "float32")
        if leeway.judge(np, raw, prepared, "y", "float32", baseline=False)[0].passed:
            return True
        wider = widen(np, raw, "float32", prepared, "y", lambda: moved_of(gated, x))
        if wider is None:
            return False
        return leeway.judge(np, raw, wider, "y", "float32", baseline=False)[0].passed

    found = gated({"x": x})["y"]
    assert passes(found)
    found[7] = x[7] - found[7]
    assert passes(found)
    near = int(np.argsort(np.abs(x - x.mean() / 2))[1])
    found[near] = x[near] - found[near]
    assert not passes(found)
    assert not passes(np.zeros(SIZE))
