"""fused_moe: routes, reference, space, and SGLang's own kernel under Triton's interpreter."""

from __future__ import annotations

import runpy
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
from callable_kernels import H200, KERNELS, callable_space, derived, drawn
from compiled_sglang import shared_bytes
from interpreted_sglang import interpreted

from tuner.device.verify.outputs import zeros_pass
from tuner.search.pool import valid_configs

NAME = "fused_moe"
CONFIG = {
    **{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1},
    **{"num_warps": 4, "num_stages": 2},
}
OWN = {"down_BLOCK_SIZE_N": 128, "down_BLOCK_SIZE_K": 128, "down_GROUP_SIZE_M": 16}
SMALL = {"M": 5, "E": 4, "N": 72, "K": 136, "TOP_K": 2, "EP": 1}
SHARED = {"M": 9, "E": 4, "N": 128, "K": 256, "TOP_K": 6, "EP": 4}
QWEN3 = {"M": 1024, "E": 128, "N": 768, "K": 2048, "TOP_K": 8, "EP": 1}
MODULE = runpy.run_path(f"{KERNELS / NAME}.py")


def routes(axes: dict[str, int], routing: str, fill: str = "normal", seed: int = 1) -> Any:
    return MODULE["routes_of"](np, np.random.default_rng(seed), axes, fill, routing)


def shares(routing: str, seed: int) -> np.ndarray:
    """Give each expert's share of the routes of 1,024 tokens, the largest first."""
    ids = routes(QWEN3, routing, seed=seed)
    return np.sort(np.bincount(ids.ravel(), minlength=QWEN3["E"]))[::-1] / ids.size


@pytest.mark.parametrize("routing", ["balanced", "skewed", "real"])
@pytest.mark.parametrize("fill", ["normal", "x3", "x0.01", "negated", "zeros", "extreme"])
def test_a_token_has_distinct_experts(routing: str, fill: str) -> None:
    ids = routes(QWEN3, routing, fill)
    assert ids.shape == (1024, 8)
    assert 0 <= ids.min() <= ids.max() < 128
    assert (np.diff(np.sort(ids, axis=1)) > 0).all()


def test_experts_of_other_gpus_are_minus_1() -> None:
    ids = routes({**QWEN3, "E": 32, "EP": 8}, "balanced")
    assert ids.min() == -1
    assert ids.max() == 31
    assert 0.85 < (ids == -1).mean() < 0.9
    one_token = {**QWEN3, "M": 1, "E": 32, "EP": 8}
    assert all(routes(one_token, "real", seed=seed)[0, 0] >= 0 for seed in range(50))


def test_all_tokens_may_want_the_same_experts_and_all_experts_the_same_number() -> None:
    assert (routes(QWEN3, "balanced", "zeros") == np.arange(8)).all()
    counts = np.bincount(routes(QWEN3, "balanced", "x0.01").ravel(), minlength=128)
    assert set(counts) == {64}


def test_real_routes_are_spread_as_those_of_qwen3_were_counted() -> None:
    drawn_shares = np.array([shares("real", seed) for seed in range(20)])
    for_most = (np.cumsum(drawn_shares, axis=1) < 0.9).sum(axis=1) + 1
    logs = np.log(np.maximum(drawn_shares, 1e-9))
    concentration = 1 + (drawn_shares * logs).sum(axis=1) / np.log(128)
    assert for_most.mean() == pytest.approx(65, abs=3)
    assert concentration.mean() == pytest.approx(0.111, abs=0.01)
    assert drawn_shares[:, 0].mean() == pytest.approx(0.043, abs=0.012)


def test_skewed_routes_have_a_favourite_and_balanced_ones_have_none() -> None:
    first = {
        routing: float(np.mean([shares(routing, seed)[0] for seed in range(10)]))
        for routing in ("balanced", "real", "skewed")
    }
    assert first["balanced"] < 0.012
    assert first["balanced"] < first["real"] < first["skewed"]
    assert first["skewed"] > 0.09


@pytest.mark.parametrize(("ep", "most"), [(1, 0.015), (8, 0.04)])
@pytest.mark.parametrize("tokens", [4, 16, 64, 256, 1536])
def test_one_routing_gives_the_kernel_as_much_to_do_as_another(
    tokens: int, ep: int, most: float
) -> None:
    axes = {**QWEN3, "M": tokens, "E": 128 // ep, "EP": ep}
    drawn_routes = [routes(axes, "real", seed=seed) for seed in range(12)]
    blocks = np.array([MODULE["blocks_of"](np, one, axes["E"]) for one in drawn_routes])
    assert (blocks.std(axis=0) < most * blocks.mean(axis=0)).all()
    assert len({one.tobytes() for one in drawn_routes}) == 12


@pytest.mark.parametrize("routing", ["balanced", "skewed", "real"])
def test_the_least_bytes_are_of_no_more_experts_than_tokens_have(routing: str) -> None:
    spec = callable_space(NAME, ROUTING=routing).spec
    assert spec.min_bytes is not None
    for tokens in (1, 4, 16, 64, 256):
        axes = {**QWEN3, "M": tokens}
        touched = [len(np.unique(routes(axes, routing, seed=seed))) for seed in range(80)]
        rows = 2 * (tokens * 2048 + tokens * 8 * (768 + 2 * 768 + 2048)) + 64 * tokens
        least = spec.min_bytes.evaluate({**axes, "PART": "both", "WEIGHTS": "bf16"}) - rows
        experts = least / (2 * 3 * 768 * 2048)
        assert experts <= float(np.mean(touched)) * 1.01
        assert routing != "balanced" or experts > float(np.mean(touched)) * 0.97


def in_pytorch(
    values: dict[str, Any], axes: dict[str, int], part: str, weights: str, side: int = 128
) -> np.ndarray:
    """Compute what the reference does, route by route."""
    import torch

    given = {name: torch.from_numpy(np.array(one)).double() for name, one in values.items()}
    parts = []
    for rows, of, shared in (("x", "w1", axes["TOP_K"]), ("h", "w2", 1)):
        if part not in ("both", "gate_up" if rows == "x" else "down"):
            continue
        w = given[of]
        out = torch.zeros(axes["M"] * axes["TOP_K"], w.shape[1], dtype=torch.float64)
        for route, expert in enumerate(given["topk_ids"].long().view(-1).tolist()):
            if expert >= 0:
                row, matrix = given[rows][route // shared], w[expert]
                if weights == "fp8_block":
                    blocks = torch.arange(w.shape[2]) // side
                    row = row * given[f"{rows}_scale"][route // shared, blocks]
                    of_rows = torch.arange(w.shape[1])[:, None] // side
                    matrix = matrix * given[f"{of}_scale"][expert][of_rows, blocks[None, :]]
                out[route] = matrix @ row
        if rows == "h":
            out *= given["topk_weights"].view(-1, 1)
        parts.append(out.view(-1))
    return torch.cat(parts).numpy()


@pytest.mark.parametrize("weights", ["bf16", "fp8_block"])
@pytest.mark.parametrize("part", ["both", "gate_up", "down"])
def test_the_reference_agrees_with_pytorch(part: str, weights: str) -> None:
    pytest.importorskip("torch")
    for axes, fill in product((SMALL, SHARED), ("normal", "zeros", "extreme")):
        given = drawn(NAME, axes, fill, 1, PART=part, WEIGHTS=weights)
        expected = in_pytorch(dict(given.values), axes, part, weights)
        assert np.allclose(given.out, expected, rtol=1e-12, atol=0 if fill == "extreme" else 1e-13)


SMALL_BLOCKS = "fused_moe_block32"


@pytest.mark.parametrize("part", ["both", "gate_up", "down"])
def test_with_scales_for_32_by_32_the_reference_agrees_with_pytorch(part: str) -> None:
    pytest.importorskip("torch")
    for axes, fill in product((SMALL, SHARED), ("normal", "extreme")):
        given = drawn(SMALL_BLOCKS, axes, fill, 1, PART=part)
        expected = in_pytorch(dict(given.values), axes, part, "fp8_block", 32)
        assert np.allclose(given.out, expected, rtol=1e-12, atol=0 if fill == "extreme" else 1e-13)


def test_with_scales_for_32_by_32_there_is_one_step_along_k() -> None:
    space = callable_space(SMALL_BLOCKS).space
    names = {**QWEN3, **H200, "PART": "both", "ROUTING": "balanced", "CONFIGS": "one"}
    assert len(valid_configs(space, names)) == 640
    assert space.default is not None
    assert all(limit.evaluate({**names, **space.default}) for limit in space.constraints)


@pytest.mark.slow
def test_with_scales_for_32_by_32_sglangs_kernel_agrees_with_the_reference() -> None:
    config = CONFIG | {"BLOCK_SIZE_K": 32, "down_BLOCK_SIZE_K": 32}
    case = {"kernel": SMALL_BLOCKS, "axes": SMALL, "operators": {}, "fill": "normal"}
    found = interpreted([{**case, "config": one} for one in (config, None)])
    assert max(one["worst"] for one in found) <= 1
    steps = [[each["BLOCK_SIZE_K"] for each in one["launched"]] for one in found]
    assert steps == [[32, 32], [32, 32]]


@pytest.mark.parametrize("weights", ["bf16", "fp8_block"])
def test_sums_are_near_1_for_every_length(weights: str) -> None:
    for depth in (128, 2048):
        axes = {**SMALL, "K": depth, "N": 128}
        out = drawn(NAME, axes, "normal", 1, PART="gate_up", WEIGHTS=weights).out
        assert 0.7 < out.std() < 1.4


@pytest.mark.parametrize("weights", ["bf16", "fp8_block"])
def test_zeros_are_wrong_where_most_experts_are_elsewhere(weights: str) -> None:
    tolerance = callable_space(NAME, WEIGHTS=weights).spec.tolerances["out"]
    for tokens, seed in product((1, 2, 9), range(12)):
        out = drawn(NAME, {**SHARED, "M": tokens}, "normal", seed, PART="both", WEIGHTS=weights).out
        assert not zeros_pass(np, np.zeros(out.shape, np.uint16), out, "bfloat16", tolerance)


@pytest.mark.parametrize("part", ["both", "gate_up", "down"])
def test_pytorchs_grouped_product_is_right(part: str) -> None:
    torch = pytest.importorskip("torch")
    axes = {**SMALL, "N": 64, "K": 128}
    given = drawn(NAME, axes, "normal", 1, PART=part, WEIGHTS="bf16")
    tensors = {name: torch.from_numpy(stored) for name, stored in given.stored.items()}
    for name in ("x", "h", "w1", "w2"):
        tensors[name] = tensors[name].view(torch.bfloat16)
    tensors["out"] = torch.full(given.out.shape, torch.nan, dtype=torch.bfloat16)
    MODULE["pytorch"](tensors, axes, PART=part)
    tolerance = callable_space(NAME).spec.tolerances["out"]
    # A product that is rounded before it is weighted is off by two roundings.
    allowed = tolerance.absolute + 2 * tolerance.relative * np.abs(given.out)
    assert (np.abs(tensors["out"].double().numpy() - given.out) <= allowed).all()


@pytest.mark.parametrize(
    ("operators", "valid"),
    [
        ({}, 1304),
        ({"PART": "down"}, 1304),
        ({"PART": "gate_up", "CONFIGS": "two"}, 1304),
        ({"WEIGHTS": "fp8_block"}, 1248),
        ({"CONFIGS": "two"}, 370368),
    ],
)
def test_the_space_has_the_configs_of_sglangs_script_that_fit(
    operators: dict[str, str], valid: int
) -> None:
    space = callable_space(NAME, **operators).space
    own = [len(one.values) for one in space.parameters if not one.name.startswith("down_")]
    assert np.prod(own) == 1920
    chosen = {"PART": "both", "WEIGHTS": "bf16", "ROUTING": "balanced", "CONFIGS": "one"}
    assert len(valid_configs(space, {**QWEN3, **H200, **chosen, **operators})) == valid


def test_without_sglang_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    module = runpy.run_path(f"{KERNELS / NAME}.py")
    with pytest.raises(ImportError, match=r"fused MoE kernel .*pip install .*'sglang==0.5.17'"):
        module["launch"](CONFIG, {}, SMALL)


def run(cases: list[dict[str, Any]]) -> tuple[dict[str, float], list[list[dict[str, int]]]]:
    found = interpreted([{"kernel": NAME, "fill": "normal", **case} for case in cases])
    errors = {str(case): one["worst"] for case, one in zip(cases, found, strict=True)}
    return errors, [one["launched"] for one in found]


@pytest.mark.slow
def test_sglangs_kernel_agrees_with_the_reference() -> None:
    cases = [
        {"operators": {"PART": part, "WEIGHTS": weights}, "axes": axes, "config": config}
        for weights in ("bf16", "fp8_block")
        for part, axes, config in (
            ("gate_up", SMALL, CONFIG),
            ("down", SMALL, CONFIG),
            ("both", SMALL, CONFIG | OWN),
            ("both", SHARED, CONFIG | OWN),
            ("both", SMALL | {"M": 40}, CONFIG | {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 256}),
        )
    ]
    fills = ("normal", "zeros", "extreme")
    errors, launched = run([{**case, "fill": fill} for case in cases for fill in fills])
    assert max(errors.values()) <= 1, errors
    assert [len(one) for one in launched[::3]] == [1, 1, 2, 2, 2] * 2
    first, second = launched[6]
    assert first == CONFIG
    assert second == CONFIG | {key.removeprefix("down_"): value for key, value in OWN.items()}


@pytest.mark.slow
def test_without_a_config_sglang_takes_its_file_or_its_guess() -> None:
    shipped = {"M": 1, "E": 128, "N": 768, "K": 64, "TOP_K": 8, "EP": 1}  # no file names K
    cases = [
        {"operators": {"WEIGHTS": weights}, "axes": axes, "config": None}
        for axes, weights in ((shipped, "bf16"), (SMALL, "bf16"), (SMALL, "fp8_block"))
    ]
    errors, (filed, guessed, of_fp8) = run(cases)
    assert max(errors.values()) <= 1, errors
    # Of triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200.json; another Triton takes another file.
    assert filed == [CONFIG | {"BLOCK_SIZE_N": 64, "num_stages": 5}] * 2
    assert [one["BLOCK_SIZE_M"] for one in (*guessed, *of_fp8)] == [64] * 4
    assert {one["BLOCK_SIZE_K"] for one in guessed} == {32}
    assert {one["BLOCK_SIZE_K"] for one in of_fp8} == {128}


@pytest.mark.slow
def test_the_baseline_of_a_served_model_is_the_file_that_sglang_loads() -> None:
    deepseek = {"E": 256, "N": 256, "K": 7168, "TOP_K": 8, "EP": 1}
    cases = [
        {"kernel": NAME, "axes": {"M": 4096, **axes}, "operators": {"WEIGHTS": weights}}
        for axes, weights in (
            (QWEN3 | {"M": 4096}, "bf16"),
            (deepseek, "fp8_block"),  # of Triton 3.1
            (deepseek | {"E": 32, "N": 2048, "EP": 8}, "fp8_block"),  # none
            (deepseek | {"E": 513, "N": 512}, "fp8_block"),  # with USE_TMA for down
        )
    ]
    *found, refused = interpreted(cases)
    groups = [[config["GROUP_SIZE_M"] for config in one["chosen"]] for one in found]
    assert groups == [[16, 16], [64, 64], [32, 32]]
    assert "asks for USE_TMA" in refused["refused"]


@pytest.mark.slow
def test_a_step_along_k_that_has_two_scales_is_caught() -> None:
    """Why the space leaves 256 out with block scales."""
    axes = {**SHARED, "K": 512}
    operators = {"PART": "gate_up", "WEIGHTS": "fp8_block"}
    configs = [CONFIG | {"BLOCK_SIZE_K": depth} for depth in (128, 256)]
    errors, _ = run([{"operators": operators, "axes": axes, "config": one} for one in configs])
    right, wrong = errors.values()
    assert right <= 1
    assert wrong > 10


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["bf16", "fp8_block"])
def test_triton_takes_the_shared_memory_that_the_space_counts(weights: str) -> None:
    axes = {"M": 16, "E": 4, "N": 256, "K": 256, "TOP_K": 2, "EP": 1}
    operators = {"PART": "gate_up", "WEIGHTS": weights}
    tiles = ((16, 32, 2), (16, 128, 3), (32, 256, 3), (64, 32, 2), (64, 128, 4), (256, 128, 3))
    configs = [
        CONFIG | {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": columns, "num_stages": stages}
        for rows, columns, stages in tiles
    ]
    cases = [
        {"kernel": NAME, "axes": axes, "operators": operators, "config": config}
        for config in configs
    ]
    counted = [derived(NAME, "shared_bytes", config, **operators) for config in configs]
    taken = [one for (one,) in shared_bytes(cases)]
    if weights == "bf16":
        assert taken == counted
    # Not every product of fp8 codes needs the room for scales.
    assert all(0 <= most - bytes_ <= 1024 for most, bytes_ in zip(counted, taken, strict=True))


@pytest.mark.parametrize("weights", ["bf16", "fp8_block"])
@pytest.mark.parametrize("configs", ["one", "two"])
@pytest.mark.parametrize("part", ["both", "gate_up", "down"])
def test_the_default_and_the_suggestions_are_valid(part: str, configs: str, weights: str) -> None:
    operators = {"PART": part, "WEIGHTS": weights, "ROUTING": "balanced", "CONFIGS": configs}
    space = callable_space(NAME, **operators).space
    assert space.default is not None
    for config in (space.default, *space.suggestions):
        names = {**QWEN3, **H200, **operators, **config}
        assert all(limit.evaluate(names) for limit in space.constraints), config
