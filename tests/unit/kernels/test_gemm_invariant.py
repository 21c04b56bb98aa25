"""gemm_invariant: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from rows_on_host import bits_of, run_rows
from shipped_kernels import (
    EditsOfTheTemplate,
    KernelChecks,
    Sample,
    ShippedKernel,
)

from tuner.app.check import target_info
from tuner.compiler.base import Compiler
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import CompileTarget
from tuner.model.expressions import Value
from tuner.model.kernel import Launch, Workload
from tuner.space.template import Template

KERNEL = ShippedKernel("gemm_invariant")
# Places of stages are used more than once, and blocks walk over tiles where they may.
SMALL: dict[str, Value] = {"tile_k": 64, "stages": 2, "resident": 1}
BLOCK: dict[str, Value] = {**SMALL, "sum_by": "block"}
CLUSTER: dict[str, Value] = {**SMALL, "sum_by": "cluster"}
LAST: dict[str, Value] = {**SMALL, "sum_by": "last"}


def test_rows_of_x_are_multiplied_by_rows_of_w() -> None:
    x, w = np.array([[1.0, 2], [3, 4]]), np.array([[1.0, 0], [0, 1], [1, 1]])
    y = KERNEL.compute({"x": x, "w": w}, {"T": 2, "N": 3, "K": 2})["y"]
    assert y.tolist() == [[1, 2, 3], [3, 4, 7]]


def test_sums_are_near_1_for_every_length() -> None:
    for depth in (256, 16384):
        axes = {"T": 4, "N": 32, "K": depth}
        x = np.random.default_rng(1).standard_normal((4, depth))
        w = KERNEL.drawn(axes, "normal")["w"].astype(np.float64)
        assert 0.7 < KERNEL.compute({"x": x, "w": w}, axes)["y"].std() < 1.4


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    baselines = ({"T": 3, "N": 40, "K": 264}, {"T": 70, "N": 72, "K": 128})
    samples = tuple(
        Sample({"T": tokens, "N": columns, "K": depth}, 1, having)
        for tokens, columns, depth, having in (
            (1, 72, 264, {**BLOCK, "parts": 1, "tile_t": 8, "tile_n": 64}),
            (9, 200, 512, {**BLOCK, "parts": 2, "tile_t": 16, "tile_n": 64, "groups": 1}),
            (70, 136, 512, {**BLOCK, "parts": 4, "tile_t": 48, "tile_n": 128, "groups": 2}),
            (40, 328, 512, {**BLOCK, "parts": 1, "tile_n": 128, "share": 2, "tile_t": 32}),
            (33, 520, 512, {**BLOCK, "parts": 2, "tile_n": 64, "share": 4, "tile_t": 32}),
            (100, 136, 384, {**BLOCK, "parts": 1, "tile_t": 96, "tile_n": 128, "groups": 1}),
            (5, 72, 512, {**CLUSTER, "parts": 2, "tile_t": 8, "tile_n": 64}),
            (50, 136, 512, {**CLUSTER, "parts": 4, "tile_t": 24, "groups": 2}),
            (3, 40, 512, {**CLUSTER, "parts": 8, "tile_t": 8, "groups": 1}),
            (7, 136, 512, {**LAST, "parts": 4, "tile_t": 8, "tile_n": 64}),
            (40, 200, 512, {**LAST, "parts": 2, "tile_t": 32, "groups": 2}),
            (60, 264, 512, {**LAST, "parts": 2, "tile_t": 64, "share": 2}),
        )
    )
    workload = {"T": 3, "N": 72, "K": 512}
    launches = (
        Launch(
            "gemm_invariant<8>", (2, 1, 1), (128, 1, 1), arguments=("y", "x", "w", "T", "N", "K")
        ),
    )


class TestParts(EditsOfTheTemplate):
    kernel = KERNEL
    edits_of = "gemm_invariant's parts of one block"
    workload = Workload.of({"T": 40, "N": 136, "K": 512})
    having: ClassVar = {**BLOCK, "parts": 2, "tile_t": 64}


class TestPartsOfACluster(TestParts):
    edits_of = "gemm_invariant's parts of a cluster"
    having: ClassVar = {**CLUSTER, "parts": 2, "tile_t": 32}


class TestPartsThatTheLastAdds(TestParts):
    edits_of = "gemm_invariant's parts that the last adds up"
    having: ClassVar = {**LAST, "parts": 2, "tile_t": 32, "share": 2}


# The second half of K takes away what the first gave, in another order: rounding is what is left.
CANCELLING = """
def reference(xp, inputs, axes):
    return {"y": inputs["x"] @ inputs["w"].T}

def inputs(xp, rng, axes, fill):
    x, w = (rng.standard_normal((axes[n], axes["K"] // 2), dtype=xp.float32) for n in "TN")
    halves = {"x": [x, -x[:, ::-1]], "w": [w, w[:, ::-1]]}
    return {name: xp.concatenate(both, axis=1) for name, both in halves.items()}
"""
CONFIGS: tuple[dict[str, Value], ...] = (
    {**BLOCK, "parts": 1},
    {**BLOCK, "parts": 1, "tile_n": 128, "groups": 2, "share": 2, "tile_t": 16, "stages": 4},
    {**BLOCK, "parts": 2, "tile_t": 24, "persistent": True},
    {**CLUSTER, "parts": 2, "tile_k": 128, "tile_t": 16},
    {**LAST, "parts": 2, "tile_n": 128, "groups": 2},
    {**BLOCK, "parts": 4, "tile_t": 48},
    {**CLUSTER, "parts": 4, "tile_t": 8},
    {**LAST, "parts": 4, "tile_t": 16, "persistent": True},
)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_bits_of_a_row_depend_on_the_parts_of_k_alone(
    tmp_path: Path, compiler: Compiler
) -> None:
    configs = {f"{having}": having for having in CONFIGS}
    classes = defaultdict(set)
    for name, outcomes in run_rows(KERNEL, CANCELLING, configs, tmp_path, compiler).items():
        classes[name.partition("'parts': ")[2][:1]] |= bits_of(outcomes)
    assert {key: len(bits) for key, bits in classes.items()} == dict.fromkeys(["", *"124"], 1)
    assert len(set.union(*classes.values())) >= 3, "each number of parts has bits of its own"


@pytest.mark.slow
@pytest.mark.parametrize("tile", [{"tile_n": 128, "tile_t": 8}, {"tile_n": 128, "tile_t": 256}])
def test_two_warpgroups_have_the_registers_that_the_third_gives_away(
    tile: Mapping[str, Value],
) -> None:
    """What asks for more than was given away waits for ever: 168 each become 232, 232 and 40."""
    spec, space = KERNEL.spec, KERNEL.definition.space
    target = CompileTarget(spec, {}, target_info("sm_90a"))
    workload = Workload.of({"T": 2048, "N": 4096, "K": 4096})
    uneven = {"groups": 2, "resident": 1, "parts": 1, "sum_by": "block", "stages": 3, "tile_k": 64}
    names = {**target.names(workload), **space.default, **uneven, **tile}
    source = Template.load(spec.template, spec.include_dirs).render(names).source
    with NvrtcPool(workers=1) as pool:
        result = pool.submit(target.request(source, spec.candidate_launches(names))).result()
    assert [used.registers for used in result.resources.values()] == [168], result.error
