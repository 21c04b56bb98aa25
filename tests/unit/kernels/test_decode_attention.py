"""decode_attention: reference, batches of several lengths, kernels on the CPU, and near misses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
from scipy.special import softmax
from shipped_kernels import (
    EditedSource,
    EditsOfTheTemplate,
    KernelChecks,
    Sample,
    ShippedKernel,
    rendered,
)

from tuner.device.base import Program
from tuner.extensions.cpu.device import HostDevice
from tuner.model.expressions import Value
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status

KERNEL = ShippedKernel("decode_attention")
AXES = {"B": 3, "L": 70, "S": 100, "H": 2, "G": 4, "D": 128, "P": 1, "W": 75}
PAGED = {**AXES, "P": 16, "W": 5}
MANY = {**AXES, "B": 64, "L": 2048, "S": 40000, "W": 2048, "H": 1, "D": 8}
PLAIN: dict[str, Value] = {
    "tokens": 16,
    "stages": 2,
    "min_blocks": 1,
    "early": "lists",
    "pdl": True,
}
SPLIT: dict[str, Value] = {**PLAIN, "schedule": "chunks", "splits": 2, "warps": 1}
WHOLE: dict[str, Value] = {**PLAIN, "schedule": "chunks", "splits": 1, "warps": 2}


def lengths(axes: dict[str, int], fill: str = "normal", **operators: str) -> np.ndarray:
    assert KERNEL.reference.inputs is not None
    drawn = KERNEL.reference.inputs(np, np.random.default_rng(1), axes, fill, **operators)
    return np.sort(drawn["lengths"])[::-1]


def test_a_query_gets_the_mean_of_its_own_tokens_by_their_scores() -> None:
    rng, axes = np.random.default_rng(0), {**AXES, "B": 2, "P": 4, "H": 2, "G": 3, "D": 8}
    pages, held = np.array([[5, 1, 0], [3, 2, 4]]), [6, 9]
    k, v = rng.standard_normal((2, 6, 4, 2, 8))
    q = rng.standard_normal((2, 6, 8))
    arrays = {"q": q, "k": k, "v": v, "page_table": pages * 1.0, "lengths": np.array(held) * 1.0}
    out = KERNEL.compute(arrays, axes)["out"]
    for sequence, head in ((0, 0), (0, 5), (1, 2), (1, 3)):
        places = [(pages[sequence, t // 4], t % 4, head // 3) for t in range(held[sequence])]
        scores = np.array([k[place] @ q[sequence, head] for place in places]) / 128**0.5
        mean = softmax(scores) @ np.array([v[place] for place in places])
        np.testing.assert_allclose(out[sequence, head], mean, rtol=1e-12)


def test_a_sequence_without_tokens_gets_zeros() -> None:
    drawn = KERNEL.drawn({**AXES, "B": 40, "S": 400}, "zeros")
    empty = drawn["lengths"] == 0
    assert 0 < empty.sum() < 40
    q = np.ones((40, 8, 128))
    arrays = {**{name: one.astype(float) for name, one in drawn.items()}, "q": q, "k": drawn["v"]}
    out = KERNEL.compute(arrays, {**AXES, "B": 40, "S": 400})["out"]
    assert (np.abs(out).max(axis=(1, 2)) == 0).tolist() == empty.tolist()


@pytest.mark.parametrize("operator", ["uniform", "zipf", "one_long"])
def test_lengths_have_the_longest_and_the_sum_that_the_axes_say(operator: str) -> None:
    found = lengths(MANY, LENGTHS=operator)
    assert (found.max(), found.sum(), found.min() >= 1) == (2048, 40000, True)
    assert operator != "one_long" or found[1] - found[-1] <= 1
    assert lengths({**AXES, "B": 4, "L": 7, "S": 28}, LENGTHS=operator).tolist() == [7] * 4


def test_of_zipfs_law_the_fourth_is_to_the_second_as_that_to_the_first() -> None:
    first, second, _, fourth, *_ = lengths(MANY, LENGTHS="zipf")
    assert fourth / second == pytest.approx(second / first, rel=0.01)


def test_pages_are_in_no_order_and_nobodys_places_are_nan() -> None:
    drawn = KERNEL.drawn(PAGED, "nonfinite")
    places = [
        (page, token % 16)
        for length, table in zip(drawn["lengths"], drawn["page_table"], strict=True)
        for token, page in zip(range(length), np.repeat(table, 16), strict=False)
    ]
    assert len(set(places)) == 100
    held = np.zeros(drawn["k"].shape[:2], bool)
    held[tuple(np.array(places).T)] = True
    for name in "kv":
        assert (np.isfinite(drawn[name]).all(axis=(2, 3)) == held).all()
        assert (np.isnan(drawn[name]).all(axis=(2, 3)) == ~held).all()
    assert (np.diff(drawn["page_table"][:, :3]) != 1).any()


@pytest.mark.parametrize("length", [1, 30, 1000])
def test_means_are_near_1_for_every_length(length: int) -> None:
    axes = {**AXES, "B": 1, "L": length, "S": length, "W": length, "D": 64}
    rng, drawn = np.random.default_rng(2), KERNEL.drawn(axes, "normal")
    q, k = rng.standard_normal((1, 8, 64)), rng.standard_normal(drawn["v"].shape)
    arrays = {**{name: one.astype(float) for name, one in drawn.items()}, "q": q, "k": k}
    assert 0.4 < KERNEL.compute(arrays, axes)["out"].std() < 1.6


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    operators = ({}, {"KV": "fp8"})
    baselines = (AXES, {**PAGED, "D": 64}, {**AXES, "D": 256, "P": 64, "W": 2})
    samples = tuple(
        Sample(axes, 1, having)
        for axes, having in (
            (AXES, {**WHOLE, "heads": 1}),
            (AXES, {**SPLIT, "combine": "last", "heads": 2}),
            (AXES, {**SPLIT, "combine": "cluster", "heads": 1, "early": "l2", "splits": 4}),
            (PAGED, {**SPLIT, "combine": "launch", "heads": 1}),
            (AXES, {**PLAIN, "schedule": "shares", "warps": 1, "heads": 1}),
            (PAGED, {**PLAIN, "schedule": "teams", "warps": 2, "heads": 1, "stages": 3}),
            ({**AXES, "G": 16}, {**SPLIT, "combine": "last", "heads": 1, "tokens": 32}),
            ({**PAGED, "D": 64, "G": 1}, {**WHOLE, "tokens": 32, "heads": 2}),
            ({**AXES, "D": 256, "P": 64, "W": 2, "G": 7}, {**WHOLE, "heads": 1}),
            ({**AXES, "B": 2, "L": 1, "S": 2}, {**WHOLE, "heads": 1}),
        )
    )
    workload = PAGED
    launches = (Launch("decode_attention<128>", (8, 3, 1), (256, 1, 1)),)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
class TestEditsOfTheTemplate(EditsOfTheTemplate):
    kernel = KERNEL
    edits_of = "decode_attention's parts"
    workload = Workload.of(AXES)
    having: ClassVar = {**SPLIT, "combine": "last", "warps": 2, "heads": 1}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
class TestOfLengthsThatTheLaunchIsNotTold:
    """A CUDA graph keeps the longest length of when it was captured, and meets others."""

    kernel = KERNEL
    cases = tuple(product(("last", "cluster", "launch"), ("1", "L / 3", "L + 20")))

    @classmethod
    def edited_sources(cls) -> Iterator[EditedSource]:
        for combine, told in cls.cases:
            made = rendered(KERNEL, Workload.of(AXES), {**SPLIT, "combine": combine, "heads": 1})
            source = made.source.replace("B, L, W, v_scale}", f"B, {told}, W, v_scale}}")
            source = source.replace("chunk_steps(L)", f"chunk_steps({told})")
            assert source != made.source
            yield replace(made, name=f"{combine} {told}", source=source)

    @pytest.mark.parametrize("case", cases, ids=" ".join)
    def test_it_is_right(
        self, edited: Mapping[str, Program], device: HostDevice, case: tuple[str, str]
    ) -> None:
        verified = device.verify(edited[" ".join(case)])
        assert verified.status is Status.CORRECT, verified


class TestEditsOfTheCluster(TestEditsOfTheTemplate):
    edits_of = "decode_attention's clusters"
    having: ClassVar = {**SPLIT, "combine": "cluster", "splits": 4}
