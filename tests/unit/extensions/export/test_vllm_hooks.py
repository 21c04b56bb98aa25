"""Adapters: what of vLLM's calls reaches a tuned operator, and what comes back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from installed_plugins import Noting

torch = pytest.importorskip("torch")

from tuner.extensions.runtime.pytorch.replacing import ORIGINAL, Tuned  # noqa: E402
from tuner.extensions.runtime.vllm import hooks  # noqa: E402
from tuner.extensions.runtime.vllm.hooks import ENGINE, HOOKS  # noqa: E402
from tuner.space.load import load_definition  # noqa: E402

SPACES = Path(__file__).parents[4] / "search_spaces" / "sglang"
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
CHOICES = {"SCALES": "column", "RENORMALIZE": "true", "ACTIVATION": "silu"}
SILU, GELU = SimpleNamespace(name="SILU"), SimpleNamespace(name="GELU")


@pytest.fixture
def operator() -> Noting:
    return Noting()


@pytest.fixture
def tuned(operator: Noting) -> Tuned:
    return Tuned(operator, CHOICES)


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """vLLM's view of where tokens and experts are, and whether ids of padding are -1."""
    group = SimpleNamespace(world_size=1)
    found = {
        "vllm.envs": SimpleNamespace(VLLM_MOE_SKIP_PADDING=False),
        "vllm.distributed.parallel_state": SimpleNamespace(_DP=group, get_dp_group=lambda: group),
        "vllm.utils.deep_gemm": SimpleNamespace(is_deep_gemm_e8m0_used=lambda: False),
    }
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return {**found, "group": group}


X, W, S = torch.zeros(4, 256, dtype=BF16), torch.zeros(256, dtype=BF16), torch.zeros(4, 2)
V = torch.zeros(4, 2, 8, dtype=BF16)
IDS = torch.zeros(4, 2, dtype=torch.int32)


def test_rows_are_normalized_into_a_new_array(tuned: Tuned, operator: Noting) -> None:
    out = hooks.rms_norm(tuned, X, W, 1e-5)
    assert (out.shape, out.dtype) == (X.shape, BF16)
    assert operator.tensors == (out, X, W)
    assert operator.keywords == {"eps": 1e-5}


def test_a_sum_is_normalized_in_place(tuned: Tuned, operator: Noting) -> None:
    x, residual = X.clone(), X.clone()
    assert hooks.fused_add_rms_norm(tuned, x, residual, W, 1e-5) == (x, residual)
    assert operator.tensors == (x, residual, W)


@pytest.mark.parametrize(
    ("x", "weight", "size"),
    [
        (V, torch.zeros(8, dtype=BF16), None),
        (X, None, None),
        (X, W.float(), None),
        (X.float(), W.float(), None),
        (X, W, 128),
        (X[:, :128], W[:128], None),
    ],
    ids=["heads", "no weight", "gemma", "float", "a part of each row", "gaps"],
)
def test_other_norms_are_not_supported(x: Any, weight: Any, size: int | None) -> None:
    assert not hooks.supports_rms_norm(x, weight, 1e-6, size)
    assert not hooks.supports_fused_add_rms_norm(x, x, weight, 1e-6, size)


def test_rows_are_supported_however_many_there_are() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    rows = torch.empty(5, 256, dtype=BF16)
    torch._dynamo.mark_dynamic(rows, 0)
    fake = mode.from_tensor(rows)
    assert hooks.supports_rms_norm(fake, mode.from_tensor(W), 1e-6)
    assert hooks.supports_fused_add_rms_norm(fake, fake, mode.from_tensor(W), 1e-6)
    assert not environment.guards


def test_a_layers_activation_has_a_new_array(tuned: Tuned, operator: Noting) -> None:
    out = hooks.silu_and_mul(tuned, None, torch.zeros(2, 3, 16, dtype=BF16))
    assert (out.shape, out.dtype) == ((2, 3, 8), BF16)
    assert operator.shapes == [(6, 8), (6, 16)]


def test_a_gelu_is_one_of_two(operator: Noting) -> None:
    tuned = Tuned(operator, {"ACTIVATION": "gelu_tanh"})
    assert hooks.gelu_and_mul(tuned, SimpleNamespace(approximate="none"), X) is ORIGINAL
    assert hooks.gelu_and_mul(tuned, SimpleNamespace(approximate="tanh"), X).shape == (4, 128)


def test_an_experts_activation_is_the_callers_array(tuned: Tuned, operator: Noting) -> None:
    out = torch.zeros(4, 128, dtype=BF16)
    assert hooks.apply_moe_activation(tuned, SILU, out, X, topk_ids=IDS) is out
    assert operator.tensors == (out, X)


def test_experts_are_added_up_without_a_factor(tuned: Tuned, operator: Noting) -> None:
    out = torch.zeros(4, 8, dtype=BF16)
    assert hooks.moe_sum(tuned, V, out) is None
    assert operator.tensors == (out, V)
    assert operator.keywords == {"scale": 1.0}


def test_a_router_fills_weights_and_ids(tuned: Tuned, operator: Noting) -> None:
    assert hooks.topk_softmax(tuned, S, IDS, IDS.clone(), X, True) is None
    assert operator.tensors == (S, IDS, X)


@pytest.mark.parametrize("tokens", [1, 3, 4, 40])
@pytest.mark.parametrize("padded", [False, True])
def test_routes_are_sorted_into_arrays_of_vllms_sizes(
    tuned: Tuned, operator: Noting, tokens: int, padded: bool
) -> None:
    routes, experts, block = tokens * 2, 8, 16
    places = routes + experts * (block - 1)
    places = -(-places // block) * block if padded else places
    places = min(places, routes * block) if routes < experts else places
    ids = torch.zeros(tokens, 2, dtype=torch.int32)
    found = hooks.moe_align_block_size(tuned, ids, block, experts, None, padded)
    assert [tuple(one.shape) for one in found] == [(places,), (-(-places // block),), (1,)]
    assert {one.dtype for one in found} == {torch.int32}
    tiles = min(routes, -(-(routes + experts * (block - 1)) // block))
    assert operator.shapes == [(tiles * block,), (tiles,), (1,), (tokens, 2)]
    assert operator.tensors[0].data_ptr() == found[0].data_ptr()
    assert operator.keywords == {"E": 8, "B": 16}


def by_rows(tuned: Tuned, **other: Any) -> Any:
    return hooks.scaled_fp8_quant(tuned, **{"input": X, "use_per_token_if_dynamic": True, **other})


def test_a_row_of_scales_is_vllms_column(tuned: Tuned, operator: Noting) -> None:
    q, scales = by_rows(tuned)
    assert (q.shape, q.dtype, scales.shape) == (X.shape, FP8, (4, 1))
    assert operator.shapes == [(4, 256), (4,), (4, 256)]
    mine = torch.empty(X.shape, dtype=FP8)
    assert by_rows(tuned, output=mine)[0] is mine


def group(tuned: Tuned, **other: Any) -> Any:
    given = {"x": X, "group_size": 128, "column_major_scales": True, "tma_aligned_scales": True}
    return hooks.per_token_group_quant_fp8(tuned, **{**given, **other})


def test_scales_by_column_lie_as_vllms_do(tuned: Tuned, operator: Noting) -> None:
    q, scales = group(tuned, x=torch.zeros(5, 512, dtype=BF16))
    assert (q.shape, q.dtype) == ((5, 512), FP8)
    assert (scales.shape, scales.stride()) == ((5, 4), (1, 8))
    assert operator.shapes == [(5, 512), (4, 8), (5, 512)]


def test_weights_are_dequantized_into_the_type_of_their_scales(
    tuned: Tuned, operator: Noting
) -> None:
    words, scales = torch.zeros(256, 4, dtype=torch.int32), torch.zeros(2, 32, dtype=torch.float16)
    out = hooks.awq_dequantize(tuned, words, scales, words[:2], 0, 0, 0)
    assert (out.shape, out.dtype) == ((256, 32), torch.float16)
    assert operator.tensors[1:3] == (words, scales)


def aligned(tuned: Tuned, *other: Any, **named: Any) -> Any:
    return hooks.moe_align_block_size(tuned, IDS, 16, 8, *other, **named)


def experts(tuned: Tuned, activation: Any = SILU, **other: Any) -> Any:
    out = torch.zeros(4, 128, dtype=BF16)
    return hooks.apply_moe_activation(tuned, activation, out, X, **other)


def routed(tuned: Tuned, renormalize: bool = True, **other: Any) -> Any:
    return hooks.topk_softmax(tuned, S, IDS, IDS, X, renormalize, **other)


LIMITED = SimpleNamespace(clamp_limit=7.0)
LEFT: dict[str, Callable[[Tuned], Any]] = {
    "another activation": lambda t: experts(t, GELU),
    "with limits": lambda t: experts(t, activation_config=LIMITED),
    "some rows of experts": lambda t: experts(t, valid_token_counts=IDS),
    "a sum of some experts": lambda t: hooks.moe_sum(t, V, X, IDS, IDS),
    "weights as they are": lambda t: routed(t, False),
    "a bias": lambda t: routed(t, e_score_correction_bias=S),
    "rows that are padding": lambda t: routed(t, is_padding=IDS),
    "experts of one rank": lambda t: aligned(t, IDS),
    "places of routes": lambda t: aligned(t, return_scatter_idx=True),
    "one scale": lambda t: by_rows(t, use_per_token_if_dynamic=False),
    "a given scale": lambda t: by_rows(t, scale=S),
    "padded rows": lambda t: by_rows(t, num_token_padding=16),
    "a bound": lambda t: by_rows(t, scale_ub=S),
    "groups of 64": lambda t: group(t, group_size=64),
    "another floor": lambda t: group(t, eps=1e-6),
    "the other layout": lambda t: group(t, column_major_scales=False),
    "columns that are not padded": lambda t: group(t, x=X[:3], tma_aligned_scales=False),
    "scales in powers of two": lambda t: group(t, use_ue8m0=True),
    "integers": lambda t: group(t, dtype=torch.int8),
    "experts as a dimension": lambda t: group(t, x=X.view(2, 2, 256)),
}


@pytest.mark.parametrize("call", LEFT.values(), ids=LEFT)
def test_what_ours_is_not_for_is_left_to_vllm(
    tuned: Tuned, operator: Noting, call: Callable[[Tuned], Any]
) -> None:
    assert call(tuned) is ORIGINAL
    assert not operator.tensors


def test_scales_are_powers_of_two_where_deepgemm_says_so(
    tuned: Tuned, operator: Noting, one_gpu: dict[str, Any]
) -> None:
    one_gpu["vllm.utils.deep_gemm"].is_deep_gemm_e8m0_used = lambda: True
    assert group(tuned) is ORIGINAL
    assert group(tuned, use_ue8m0=False) is not ORIGINAL


def test_ids_of_padding_and_of_other_ranks_are_left_to_vllm(
    tuned: Tuned, operator: Noting, one_gpu: dict[str, Any]
) -> None:
    one_gpu["group"].world_size = 2
    assert aligned(tuned) is ORIGINAL
    one_gpu["group"].world_size = 1
    one_gpu["vllm.envs"].VLLM_MOE_SKIP_PADDING = True
    assert aligned(tuned) is ORIGINAL
    assert not operator.tensors


SERVED: dict[str, Callable[[Tuned], Any]] = {
    "rmsnorm": lambda t: hooks.rms_norm(t, X, W, 1e-6),
    "fused_add_rmsnorm": lambda t: hooks.fused_add_rms_norm(t, X, X.clone(), W, 1e-6),
    "silu_and_mul": lambda t: hooks.silu_and_mul(t, None, X),
    "moe_sum_reduce": lambda t: hooks.moe_sum(t, V, X),
    "moe_align_block_size": aligned,
    "topk_softmax": routed,
    "gemm_invariant": lambda t: hooks.invariant_product(t, X, X.t()),
    "per_token_quant_fp8": by_rows,
    "per_token_group_quant": group,
    "awq_dequantize": lambda t: hooks.awq_dequantize(t, IDS, X, IDS, 0, 0, 0),
}


@pytest.mark.parametrize("name", sorted({one.operator for one in HOOKS}))
def test_an_adapter_gives_what_the_operator_takes(name: str) -> None:
    operator, spec = Noting(serves=False), load_definition(SPACES / f"{name}.yaml").spec
    assert SERVED[name](Tuned(operator, CHOICES)) is ORIGINAL, "where no kernel serves"
    arrays = [one for one in spec.arguments if not one.is_scalar and one.role != "scratch"]
    assert [one.dim() for one in operator.tensors] == [len(one.shape) for one in arrays]
    assert set(operator.keywords) <= {one.name for one in spec.arguments if one.is_scalar}


def test_every_operator_is_replaced_or_says_why_not() -> None:
    names = {path.stem for path in (SPACES.parents[1] / "kernels/sglang").glob("*.cu")}
    assert names <= {one.operator for one in HOOKS} | set(ENGINE.why_not)


FALLBACKS: dict[str, tuple[list[str], dict[str, float], tuple[Any, ...]]] = {
    "rms_norm": (["out", "x", "w"], {"eps": 0.5}, ("out", "x", "w", 0.5)),
    "fused_add_rms_norm": (["x", "r", "w"], {"eps": 0.5}, ("x", "r", "w", 0.5)),
    "silu_and_mul": (["out", "x"], {}, ("out", "x")),
    "gelu_and_mul": (["out", "x"], {}, ("out", "x")),
    "gelu_tanh_and_mul": (["out", "x"], {}, ("out", "x")),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_in_a_compiled_graph_the_fallback_calls_vllms_kernel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, keywords, wanted = FALLBACKS[name]
    taken: list[tuple[Any, ...]] = []
    library = SimpleNamespace(**{name: lambda *arguments: taken.append(arguments)})
    monkeypatch.setattr(torch.ops, "_C", library)
    (fallback,) = {
        hook.fallback for hook in HOOKS if hook.fallback and hook.fallback.__name__ == f"_{name}"
    }
    fallback(None, *given, **keywords)
    assert taken == [wanted]
