"""Inputs that change nothing, and outputs that nothing changes, are refused before a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tuner.device.sizes import MOST_NEAR_BYTES, near_workloads, smaller_workloads
from tuner.device.verify.telling import require_telling
from tuner.model.errors import KernelError
from tuner.model.kernel import KernelSpec, Operator, Workload

MakeSpec = Callable[..., KernelSpec]
HISTOGRAM = """def reference(xp, inputs, axes):
    digits = inputs["keys"].astype(xp.int64) >> {shift} & 255
    return {{"counts": xp.bincount(digits, minlength=256)}}
"""
KEYS = ("keys", "uint32", ("T",), "input")
COUNTS = ("counts", "int32", (256,), "output")


def on(spec: KernelSpec, *sizes: int, idle: str = "") -> KernelSpec:
    arguments = tuple(replace(a, idle=(a.name in idle and "why") or "") for a in spec.arguments)
    tuned = tuple(Workload.of({"T": size}) for size in sizes)
    return replace(spec, tuned=tuned, arguments=arguments)


def refusal(spec: KernelSpec) -> str:
    try:
        require_telling(spec, {})
    except KernelError as error:
        return str(error)
    return ""


def test_keys_of_all_bits_fill_every_bin(make_spec: MakeSpec) -> None:
    for shift in (0, 8, 24):
        of = make_spec(COUNTS, KEYS, reference=HISTOGRAM.format(shift=shift))
        assert refusal(on(of, 5000)) == ""


def test_keys_that_are_all_in_one_bin_are_refused(make_spec: MakeSpec) -> None:
    of = make_spec(COUNTS, KEYS, reference=HISTOGRAM.format(shift=32))
    told = refusal(on(of, 5000))
    assert "no output of the reference depends on the input `keys`, with T=5000" in told
    assert "`idle: REASON`" in told
    told = refusal(on(of, 5000, idle="keys"))
    assert "gives the same for all 7 sets of inputs for `counts`" in told
    assert refusal(on(of, 5000, idle="keys counts")) == ""


def test_an_input_that_only_another_choice_of_the_operator_reads_is_no_mistake(
    make_spec: MakeSpec,
) -> None:
    reference = "def reference(xp, inputs, axes): return {'y': inputs['x']}\n"
    arrays = [(name, "float32", ("T",), "input") for name in ("x", "bias")]
    of = on(make_spec(("y", "float32", ("T",), "output"), *arrays, reference=reference), 64)
    assert "depends on the input `bias`" in refusal(of)
    assert refusal(replace(of, operators=(Operator("BIAS", ("no", "yes")),))) == ""


def test_a_single_row_says_nothing_and_large_problems_are_cut(make_spec: MakeSpec) -> None:
    of = make_spec(COUNTS, KEYS, reference=HISTOGRAM.format(shift=32))
    assert refusal(on(of, 1)) == ""
    assert "with T=" in refusal(on(of, 1 << 26))


@pytest.mark.parametrize("reference", ["import nothing_of_that_name\n", "reference = None\n"])
def test_a_reference_that_fails_is_left_to_others(make_spec: MakeSpec, reference: str) -> None:
    assert refusal(on(make_spec(COUNTS, KEYS, reference=reference), 64)) == ""


@pytest.mark.parametrize(
    ("size", "cut"), [(1 << 26, {1 << k for k in range(3, 21)}), (999_999, set())]
)
def test_cut_sizes_stay_powers_of_two_or_odd(make_spec: MakeSpec, size: int, cut: set[int]) -> None:
    of = on(make_spec(("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input")), size)
    found = [one.values["T"] for one in smaller_workloads(of)]
    assert len(found) == len({*found}) > 3
    assert all(one < size and (one in cut if cut else one % 2) for one in found)
    refused = {one.values["T"] for one in smaller_workloads(of, lambda sizes: sizes["T"] > 100)}
    assert refused == {one for one in found if one > 100}


def test_near_sizes_are_small_one_no_multiple_and_of_more_steps(make_spec: MakeSpec) -> None:
    arrays = ("y", "float32", ("T", 8), "output"), ("x", "float32", ("T // 4", 8), "input")
    of = on(make_spec(*arrays), 512)
    found = [one.values["T"] for one in near_workloads(of)]
    assert found == [513, 2048]  # of 1 and of 3 nothing would be read
    large = near_workloads(on(of, 1 << 26))
    assert large
    assert all(of.footprint_bytes(one) <= MOST_NEAR_BYTES for one in large)
