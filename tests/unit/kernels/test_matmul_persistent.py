"""matmul_persistent: reference, inputs, space, and both engines' kernels under the interpreter."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import numpy as np
import pytest
from callable_kernels import H200, KERNELS, callable_space, derived, drawn
from compiled_sglang import shared_bytes
from interpreted_sglang import interpreted

from tuner.search.pool import valid_configs

NAME = "matmul_persistent"
CONFIG = {
    **{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8},
    **{"num_warps": 4, "num_stages": 2},
}


@pytest.mark.parametrize("fill", ["normal", "extreme"])
def test_the_reference_agrees_with_pytorch(fill: str) -> None:
    torch = pytest.importorskip("torch")
    given = drawn(NAME, {"M": 5, "N": 72, "K": 200}, fill, 1)
    x, w = (torch.from_numpy(given.values[name]).double() for name in ("x", "w"))
    assert np.allclose(given.out, torch.nn.functional.linear(x, w).numpy(), rtol=1e-12)


@pytest.mark.parametrize("depth", [512, 7168])
def test_sums_are_near_1_for_every_length(depth: int) -> None:
    assert 0.7 < drawn(NAME, {"M": 4, "N": 136, "K": depth}, "normal", 1).out.std() < 1.4


def test_extreme_rows_have_one_sign_and_a_scale_of_their_own() -> None:
    values = drawn(NAME, {"M": 40, "N": 16, "K": 256}, "extreme", 1).values
    assert (values["x"] >= 0).all()
    means = np.log2(values["x"].mean(axis=1))
    assert 100 < means.max() - means.min() < 120
    signs = np.sign(values["w"])
    assert (signs * signs[:, :1] >= 0).all()


@pytest.mark.parametrize(
    ("engine", "groups", "count"), [("sglang", {1, 8}, 716), ("vllm", {8}, 358)]
)
def test_the_space_has_what_an_engine_s_table_can_say(
    engine: str, groups: set[int], count: int
) -> None:
    definition = callable_space(NAME, ENGINE=engine)
    assert definition.spec.invariant is not None
    assert definition.spec.invariant.outputs == ("out",)
    pool = valid_configs(
        definition.space, {"M": 64, "N": 4096, "K": 4096, "ENGINE": engine, **H200}
    )
    assert len(pool) == count
    assert {config["GROUP_SIZE_M"] for config in pool} == groups


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_without_the_engine_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    module = runpy.run_path(f"{KERNELS / NAME}.py")
    with pytest.raises(ImportError, match=rf"invariant product .*pip install .*{engine}=="):
        module["launch"](CONFIG, {"x": None, "w": None}, {}, ENGINE=engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_engine_s_kernel_agrees_with_the_reference(engine: str) -> None:
    larger = CONFIG | {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32}
    cases: list[dict[str, Any]] = [
        {
            **{"kernel": NAME, "axes": axes, "operators": {"ENGINE": engine}},
            **{"config": config, "fill": fill},
        }
        for axes in ({"M": 3, "N": 72, "K": 200}, {"M": 40, "N": 136, "K": 96})
        for config in (CONFIG, larger, None)
        for fill in ("normal", "extreme")
    ]
    found = interpreted(cases, engine)
    worst = {str(case): one["worst"] for case, one in zip(cases, found, strict=True)}
    assert max(worst.values()) <= 1, worst
    tiles = [one["launched"][0]["BLOCK_SIZE_N"] for one in found]
    assert tiles == [32, 32, 64, 64, 128, 128] * 2, "None is the engine's own config"


@pytest.mark.slow
def test_triton_takes_no_less_shared_memory_than_the_space_counts() -> None:
    tiles = (
        (16, 32, 64, 2),
        (16, 256, 64, 3),
        (64, 32, 64, 2),
        (128, 128, 64, 3),
        (128, 256, 32, 2),
    )
    configs = [
        CONFIG
        | {
            "BLOCK_SIZE_M": rows,
            "BLOCK_SIZE_N": columns,
            "BLOCK_SIZE_K": step,
            "num_stages": stages,
        }
        for rows, columns, step, stages in tiles
    ]
    axes = {"M": 16, "N": 256, "K": 256}
    operators = {"ENGINE": "sglang"}
    cases = [
        {"kernel": NAME, "axes": axes, "operators": operators, "config": one} for one in configs
    ]
    for config, (taken,) in zip(configs, shared_bytes(cases), strict=True):
        counted = derived(NAME, "shared_bytes", config)
        assert isinstance(counted, int)
        # The rest of a tile, at most of 32 KiB.
        assert 0 <= taken - counted <= 32 << 10, config
