"""w8a8_block_fp8: reference, inputs, space, and SGLang's own kernel under Triton's interpreter."""

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

NAME = "w8a8_block_fp8"
CONFIG = {
    **{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1},
    **{"num_warps": 4, "num_stages": 2},
}


@pytest.mark.parametrize("side", [128, 32])
@pytest.mark.parametrize("fill", ["normal", "zeros", "extreme"])
def test_the_reference_agrees_with_pytorch(fill: str, side: int) -> None:
    torch = pytest.importorskip("torch")
    axes = {"M": 5, "N": 136, "K": 200}
    given = drawn(NAME, axes, fill, 1, SCALES=f"block{side}")
    x, w, x_scale, w_scale = (
        torch.from_numpy(given.values[name]).double() for name in ("x", "w", "x_scale", "w_scale")
    )
    scaled = torch.zeros(axes["M"], axes["N"], dtype=torch.float64)
    for row in range(0, axes["N"], side):
        for column in range(0, axes["K"], side):
            here = slice(column, column + side)
            part = x[:, here] * x_scale[:, column // side, None]
            of_w = w[row : row + side, here] * w_scale[row // side, column // side]
            scaled[:, row : row + side] += part @ of_w.T
    assert np.allclose(
        given.out, scaled.numpy(), rtol=1e-12, atol=0 if fill == "extreme" else 1e-13
    )


@pytest.mark.parametrize("depth", [512, 7168])
def test_sums_are_near_1_for_every_length(depth: int) -> None:
    assert 0.7 < drawn(NAME, {"M": 4, "N": 136, "K": depth}, "normal", 1).out.std() < 1.4


def test_extreme_rows_have_one_sign_and_a_scale_of_their_own() -> None:
    values = drawn(NAME, {"M": 40, "N": 16, "K": 256}, "extreme", 1).values
    assert (values["x"] >= 0).all()
    assert np.log2(values["x_scale"].max() / values["x_scale"].min()) == 110
    signs = np.sign(values["w"])
    assert (signs * signs[:, :1] >= 0).all()


def test_the_space_has_the_configs_of_sglangs_script_that_fit_into_shared_memory() -> None:
    space = callable_space(NAME).space
    assert np.prod([len(parameter.values) for parameter in space.parameters]) == 1280
    sizes = {"M": 64, "N": 2112, "K": 7168, **H200}
    assert len(valid_configs(callable_space(NAME, SCALES="block32").space, sizes)) == 640
    pool = valid_configs(space, sizes)
    assert len(pool) == 1248
    out = [config for config in pool if config["num_stages"] == 5 and config["BLOCK_SIZE_M"] == 256]
    assert max(config["BLOCK_SIZE_N"] for config in out if config["BLOCK_SIZE_K"] == 128) == 64


def test_without_sglang_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    module = runpy.run_path(f"{KERNELS / NAME}.py")
    with pytest.raises(ImportError, match=r"block fp8 kernel .*pip install .*'sglang==0.5.17'"):
        module["launch"](CONFIG, {}, {"M": 1, "N": 128, "K": 128})


@pytest.mark.slow
def test_sglangs_kernel_agrees_with_the_reference() -> None:
    cases: list[dict[str, Any]] = [
        {"kernel": NAME, "axes": axes, "operators": {}, "config": config, "fill": fill}
        for axes in ({"M": 3, "N": 72, "K": 200}, {"M": 20, "N": 136, "K": 384})
        for config in (CONFIG, CONFIG | {"BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 128}, None)
        for fill in ("normal", "extreme")
    ]
    found = interpreted(cases)
    worst = {str(case): one["worst"] for case, one in zip(cases, found, strict=True)}
    assert max(worst.values()) <= 1, worst
    tiles = [one["launched"][0]["BLOCK_SIZE_N"] for one in found]
    assert tiles == [32, 32, 256, 256, 128, 128] * 2, "None is SGLang's own default"


@pytest.mark.slow
def test_scales_of_32_by_32_have_steps_of_32() -> None:
    axes, operators = {"M": 3, "N": 72, "K": 200}, {"SCALES": "block32"}
    case = {"kernel": NAME, "axes": axes, "operators": operators, "fill": "normal"}
    found = interpreted([{**case, "config": one} for one in (CONFIG, None)])
    assert max(one["worst"] for one in found) <= 1
    assert [one["launched"][0]["BLOCK_SIZE_K"] for one in found] == [32, 32]


@pytest.mark.slow
def test_sglang_loads_its_own_file_where_it_has_one() -> None:
    shape = {"M": 1, "N": 7168, "K": 256}
    case = {"kernel": NAME, "axes": shape, "operators": {}, "config": None, "fill": "normal"}
    (found,) = interpreted([case])
    assert found["worst"] <= 1
    (launched,) = found["launched"]
    assert launched != {**CONFIG, "BLOCK_SIZE_M": 64}
    assert launched["BLOCK_SIZE_M"] == 16


@pytest.mark.slow
def test_triton_takes_no_more_shared_memory_than_the_space_counts() -> None:
    tiles = ((16, 32, 2), (16, 128, 3), (32, 256, 3), (64, 32, 2), (64, 128, 4), (256, 128, 3))
    configs = [
        CONFIG | {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": columns, "num_stages": stages}
        for rows, columns, stages in tiles
    ]
    axes = {"M": 16, "N": 256, "K": 256}
    cases = [{"kernel": NAME, "axes": axes, "operators": {}, "config": one} for one in configs]
    for config, (taken,) in zip(configs, shared_bytes(cases), strict=True):
        counted = derived(NAME, "shared_bytes", config)
        assert isinstance(counted, int)
        # Not every product needs the room for scales.
        assert 0 <= counted - taken <= 1024, config
