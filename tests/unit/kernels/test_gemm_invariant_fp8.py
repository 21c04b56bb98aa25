"""gemm_invariant_fp8: reference, kernels on the CPU, near misses that its check has to catch."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from rows_on_host import bits_of, run_rows
from shipped_kernels import EditsOfTheTemplate, KernelChecks, Sample, ShippedKernel, near_misses

from tuner.compiler.base import Compiler
from tuner.model.expressions import Value
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status

KERNEL = ShippedKernel("gemm_invariant_fp8")
# Places of stages are used more than once, and blocks walk over tiles where they may.
SMALL: dict[str, Value] = {"tile_k": 128, "stages": 2, "resident": 1, "flight": 1}
BLOCK: dict[str, Value] = {**SMALL, "sum_by": "block"}
CLUSTER: dict[str, Value] = {**SMALL, "sum_by": "cluster"}
LAST: dict[str, Value] = {**SMALL, "sum_by": "last"}
TWO: dict[str, Value] = {"tile_k": 256, "flight": 2}
SCALES = ("block", "token")


def test_each_token_and_each_column_has_a_scale() -> None:
    x, w = np.array([[1.0, 2], [3, 4]]), np.array([[1.0, 0], [0, 1], [1, 1]])
    arrays = {"x": x, "w": w, "x_scale": np.array([[1.0], [2]]), "w_scale": np.ones((3, 1)) / 2}
    y = KERNEL.compute(arrays, {"T": 2, "N": 3, "K": 2})["y"]
    assert y.tolist() == [[0.5, 1, 1.5], [3, 4, 7]]


def test_each_block_of_128_has_a_scale() -> None:
    x, w = np.ones((1, 256)), np.ones((130, 256))
    x_scale, w_scale = np.array([[1.0, 9, 9, 9], [2, 9, 9, 9]]), np.array([[1.0, 2], [3, 4]])
    arrays = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale}
    y = KERNEL.compute(arrays, {"T": 1, "N": 130, "K": 256}, SCALES="block")["y"]
    assert y[0, [0, 127, 128]].tolist() == [128 * 5, 128 * 5, 128 * 11]


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    operators = ({"SCALES": "block"}, {"SCALES": "token"})
    baselines = ({"T": 3, "N": 136, "K": 256}, {"T": 70, "N": 72, "K": 128})
    samples = tuple(
        Sample({"T": tokens, "N": columns, "K": depth}, 1, having)
        for tokens, columns, depth, having in (
            (1, 72, 384, {**BLOCK, "parts": 1, "tile_t": 8, "tile_n": 64}),
            (9, 200, 1024, {**BLOCK, **TWO, "parts": 2, "tile_t": 16, "tile_n": 64, "groups": 1}),
            (70, 136, 1024, {**BLOCK, "parts": 4, "tile_t": 48, "tile_n": 128, "groups": 2}),
            (40, 328, 1024, {**BLOCK, "parts": 1, "tile_n": 128, "share": 2, "tile_t": 32}),
            (33, 520, 1024, {**BLOCK, "parts": 2, "tile_n": 64, "share": 4, "tile_t": 32}),
            (70, 200, 768, {**BLOCK, **TWO, "parts": 1, "tile_t": 48, "tile_n": 192}),
            (200, 136, 512, {**BLOCK, "parts": 1, "tile_t": 256, "tile_n": 128, "groups": 2}),
            (5, 72, 1024, {**CLUSTER, **TWO, "parts": 2, "tile_t": 8, "tile_n": 64}),
            (50, 136, 1024, {**CLUSTER, "parts": 4, "tile_t": 24, "groups": 2}),
            (3, 40, 1024, {**CLUSTER, "parts": 8, "tile_t": 8, "groups": 1}),
            (7, 136, 1024, {**LAST, "parts": 4, "tile_t": 8, "tile_n": 64}),
            (40, 200, 1024, {**LAST, "parts": 2, "tile_t": 32, "groups": 2}),
            (60, 264, 1024, {**LAST, "parts": 2, "tile_t": 64, "share": 2}),
        )
    )
    workload = {"T": 3, "N": 72, "K": 512}
    launches = (
        Launch(
            "gemm_invariant_fp8<8>",
            (2, 1, 1),
            (128, 1, 1),
            arguments=("y", "x", "w", "x_scale", "w_scale", "T", "N", "K"),
        ),
    )


class TestParts(EditsOfTheTemplate):
    kernel = KERNEL
    choice: ClassVar = {"SCALES": "block"}
    edits_of = "gemm_invariant_fp8's sums of blocks"
    workload = Workload.of({"T": 40, "N": 200, "K": 1024})
    having: ClassVar = {**BLOCK, **TWO, "parts": 2, "tile_t": 48, "tile_n": 128}


class TestPartsOfTokens(EditsOfTheTemplate):
    kernel = KERNEL
    edits_of = "gemm_invariant_fp8's sums of tokens"
    workload = Workload.of({"T": 40, "N": 200, "K": 1024})
    having: ClassVar = {**LAST, "parts": 2, "tile_t": 32, "tile_n": 128, "groups": 2}


# The second half of K takes away what the first gave, in another order: rounding is what is left.
CANCELLING = """
def reference(xp, inputs, axes, SCALES="token"):
    return {"y": 0 * (inputs["x"] @ inputs["w"].T)}

def inputs(xp, rng, axes, fill, SCALES="token"):
    def half(*shape):
        wide = xp.exp2(8 * rng.random(shape, dtype=xp.float32) - 4)
        return wide * rng.standard_normal(shape, dtype=xp.float32)

    def scales(*shape):
        return 0.5 + rng.random(shape, dtype=xp.float32)

    tokens, columns, depth = axes["T"], axes["N"], axes["K"] // 2
    x, w = half(tokens, depth), half(columns, depth)
    both = {"x": [x, -x[:, ::-1]], "w": [w, w[:, ::-1]]}
    drawn = {name: xp.concatenate(halves, axis=1) for name, halves in both.items()}
    if SCALES == "token":
        return drawn | {"x_scale": scales(tokens, 1), "w_scale": scales(columns, 1)}
    of_x, of_w = scales(depth // 128, -(-tokens // 4) * 4), scales(-(-columns // 128), depth // 128)
    return drawn | {
        "x_scale": xp.concatenate([of_x, of_x[::-1]]),
        "w_scale": xp.concatenate([of_w, of_w[:, ::-1]], axis=1),
    }
"""
CONFIGS: tuple[dict[str, Value], ...] = (
    {**BLOCK, "parts": 1},
    {**BLOCK, **TWO, "parts": 1, "tile_n": 128, "groups": 2, "share": 2, "tile_t": 16},
    {**BLOCK, **TWO, "parts": 1, "tile_k": 512, "flight": 4, "tile_t": 32},
    {**BLOCK, "parts": 2, "tile_t": 24, "persistent": True},
    {**CLUSTER, **TWO, "parts": 2, "tile_t": 16},
    {**LAST, "parts": 2, "tile_n": 128, "groups": 2},
    {**BLOCK, "parts": 4, "tile_t": 192},
    {**CLUSTER, "parts": 4, "tile_t": 8},
    {**LAST, "parts": 4, "tile_t": 16, "persistent": True},
)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("scales", SCALES)
def test_the_bits_of_a_row_depend_on_the_parts_of_k_alone(
    tmp_path: Path, compiler: Compiler, scales: str
) -> None:
    configs, choice = {f"{having}": having for having in CONFIGS}, {"SCALES": scales}
    classes = defaultdict(set)
    told = run_rows(KERNEL, CANCELLING, configs, tmp_path, compiler, choice, depth=1024)
    for name, outcomes in told.items():
        classes[name.partition("'parts': ")[2][:1]] |= bits_of(outcomes)
    assert {key: len(bits) for key, bits in classes.items()} == dict.fromkeys(["", *"124"], 1)
    assert len(set.union(*classes.values())) >= 3, "each number of parts has bits of its own"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("scales", SCALES)
def test_an_order_that_depends_on_the_batch_is_found_out(
    tmp_path: Path, compiler: Compiler, scales: str
) -> None:
    edits = near_misses("gemm_invariant_fp8's orders that depend on the batch")
    edits = {name: of for name, of in edits.items() if scales in name or "scale" not in name}
    configs = {name: {**LAST, "parts": 4, "tile_t": 16} for name in edits}
    choice = {"SCALES": scales}
    told = run_rows(KERNEL, CANCELLING, configs, tmp_path, compiler, choice, 1024, edits)
    for name in edits:
        bits = {outcome.correctness.bits for outcome in told[name] if outcome.correctness}
        assert Status.NOT_INVARIANT in {one.status for one in told[name]} or len(bits) > 1, name
