"""Adapters: what of SGLang's calls reaches a tuned operator, and what comes back."""

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
from tuner.extensions.runtime.sglang import hooks  # noqa: E402
from tuner.extensions.runtime.sglang.attention import MARK, Lengths  # noqa: E402
from tuner.extensions.runtime.sglang.hooks import HOOKS  # noqa: E402
from tuner.space.load import load_definition  # noqa: E402

SPACES = Path(__file__).parents[4] / "search_spaces" / "sglang"

BF16 = torch.bfloat16


CHOICES = {
    "OUT": "bf16",
    "SCALES": "column",
    "RENORMALIZE": "true",
    "STYLE": "neox",
    "THETA": "theta_1e6",
}


@pytest.fixture
def operator() -> Noting:
    return Noting()


@pytest.fixture
def tuned(operator: Noting) -> Tuned:
    return Tuned(operator, CHOICES)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """SGLang's view of how experts are spread."""
    spread = SimpleNamespace(moe_ep_size=1)
    context = SimpleNamespace(get_parallel=lambda: spread)
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    return spread


def test_rows_of_any_leading_dimensions_are_normalized(tuned: Tuned, operator: Noting) -> None:
    x, w = torch.zeros(2, 3, 8, dtype=BF16), torch.zeros(8, dtype=BF16)
    out = hooks.rmsnorm(tuned, x, w, eps=1e-5)
    assert (out.shape, out.dtype) == (x.shape, BF16)
    assert operator.shapes == [(6, 8), (6, 8), (8,)]
    assert operator.tensors[0].data_ptr() == out.data_ptr()
    assert operator.keywords == {"eps": 1e-5}


def test_the_callers_array_is_written_and_returned(tuned: Tuned, operator: Noting) -> None:
    x, w, out = torch.zeros(2, 8), torch.zeros(8), torch.zeros(2, 8)
    assert hooks.rmsnorm(tuned, x, w, 1e-6, out) is out
    assert operator.tensors[0].data_ptr() == out.data_ptr()


def test_what_works_in_place_returns_nothing(tuned: Tuned, operator: Noting) -> None:
    x, residual, w = torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(8)
    assert hooks.fused_add_rmsnorm(tuned, x, residual, w, 1e-5) is None
    assert operator.tensors == (x, residual, w)
    assert operator.keywords == {"eps": 1e-5}


def test_an_activation_allocates_as_sglang_does(tuned: Tuned, operator: Noting) -> None:
    out = hooks.act_and_mul(tuned, torch.zeros(2, 3, 16, dtype=BF16))
    assert (out.shape, out.dtype) == ((2, 3, 8), BF16)
    assert operator.shapes == [(6, 8), (6, 16)]


def test_states_are_merged_into_new_arrays_or_the_callers(tuned: Tuned, operator: Noting) -> None:
    v, s = torch.zeros(2, 3, 8, dtype=BF16), torch.zeros(2, 3)
    first, second = hooks.merge_state(tuned, v, s, v.clone(), s.clone())
    assert (first.shape, second.shape) == (v.shape, s.shape)
    assert operator.tensors[:2] == (first, second)
    mine = torch.zeros_like(v), torch.zeros_like(s)
    made = hooks.merge_state(tuned, v, s, v.clone(), s.clone(), *mine)
    assert made[0] is mine[0]
    assert made[1] is mine[1]


def test_the_sum_over_experts_has_the_callers_factor(tuned: Tuned, operator: Noting) -> None:
    x, out = torch.zeros(2, 4, 8), torch.zeros(2, 8)
    for adapter in (hooks.moe_sum_reduce, hooks.moe_sum_compiled):
        assert adapter(tuned, x, out, 2.5) is None
        assert operator.tensors == (out, x)
        assert operator.keywords == {"scale": 2.5}


def test_a_column_of_scales_is_a_row_of_them(tuned: Tuned, operator: Noting) -> None:
    x, q, scales = torch.zeros(3, 8), torch.zeros(3, 8), torch.zeros(3, 1)
    assert hooks.per_token_quant_fp8(tuned, x, q, scales) is None
    assert operator.shapes == [(3, 8), (3,), (3, 8)]


def test_scales_by_column_are_sglangs_view_of_a_padded_array(
    tuned: Tuned, operator: Noting
) -> None:
    x = torch.zeros(5, 512, dtype=BF16)
    q, scales = hooks.per_token_group_quant_fp8(
        tuned, x, 128, column_major_scales=True, scale_tma_aligned=True
    )
    assert (q.shape, q.dtype) == ((5, 512), torch.float8_e4m3fn)
    assert (scales.shape, scales.stride()) == ((5, 4), (1, 8))
    assert operator.shapes == [(5, 512), (4, 8), (5, 512)]
    assert operator.tensors[1].is_contiguous()


def test_scales_by_row_are_as_they_are(operator: Noting) -> None:
    tuned = Tuned(operator, {**CHOICES, "SCALES": "row"})
    x = torch.zeros(5, 512, dtype=BF16)
    q, scales = hooks.per_token_group_quant_fp8(tuned, x, 128)
    assert (q.shape, scales.shape) == ((5, 512), (5, 4))
    assert operator.shapes == [(5, 512), (5, 4), (5, 512)]


def layer(columns: int, depth: int) -> SimpleNamespace:
    return SimpleNamespace(weight=torch.zeros(columns, depth, dtype=BF16))


def test_a_linear_layer_takes_rows_of_any_leading_dimensions(
    tuned: Tuned, operator: Noting
) -> None:
    out = hooks.linear(tuned, None, layer(16, 8), torch.zeros(2, 3, 8, dtype=BF16))
    assert (out.shape, out.dtype) == ((2, 3, 16), BF16)
    assert operator.shapes == [(6, 16), (6, 8), (16, 8)]


@pytest.mark.parametrize(
    ("x", "bias"),
    [
        (torch.zeros(129, 8, dtype=BF16), None),
        (torch.zeros(8, 2, dtype=BF16).t(), None),
        (torch.zeros(2, 8, dtype=BF16), torch.zeros(16, dtype=BF16)),
    ],
    ids=["more rows", "other strides", "a bias"],
)
def test_other_linear_layers_are_sglangs(tuned: Tuned, operator: Noting, x: Any, bias: Any) -> None:
    assert hooks.linear(tuned, None, layer(16, 8), x, bias) is ORIGINAL
    assert not operator.tensors


class UnquantizedLinearMethod:
    """What SGLang calls that of layers in bf16."""


def mlp(**other: Any) -> SimpleNamespace:
    method, weight = UnquantizedLinearMethod(), torch.zeros(32, 8, dtype=BF16)
    first = SimpleNamespace(**{"weight": weight, "bias": None, "quant_method": method, **other})
    return SimpleNamespace(gate_up_proj=first, down_proj=lambda x, **batch: ((x, batch), None))


def test_a_gated_mlp_goes_on_with_its_last_product(tuned: Tuned, operator: Noting) -> None:
    x = torch.zeros(2, 8, dtype=BF16)
    out, batch = hooks.llama_mlp(tuned, mlp(), x)
    assert operator.shapes == [(2, 16), (2, 8), (32, 8)]
    assert (out.data_ptr(), batch) == (operator.tensors[0].data_ptr(), {})
    _, batch = hooks.qwen_mlp(tuned, mlp(), x, "of this step")
    assert batch == {"forward_batch": "of this step"}


@pytest.mark.parametrize(
    "other", [{"quant_method": None}, {"bias": torch.zeros(32)}], ids=["quantized", "with a bias"]
)
def test_other_gated_mlps_are_sglangs(tuned: Tuned, operator: Noting, other: Any) -> None:
    x = torch.zeros(2, 8, dtype=BF16)
    for adapter in (hooks.llama_mlp, hooks.qwen_mlp):
        assert adapter(tuned, mlp(**other), x) is ORIGINAL
        assert adapter(tuned, mlp(), torch.zeros(129, 8, dtype=BF16)) is ORIGINAL
    assert not operator.tensors


def test_deepseeks_first_projections_have_their_weights_transposed(
    tuned: Tuned, operator: Noting
) -> None:
    x, w = torch.zeros(2, 8, dtype=BF16), torch.zeros(16, 8, dtype=BF16)
    out = hooks.fused_a_gemm(tuned, x, w.t())
    assert operator.tensors[2].is_contiguous()
    assert operator.shapes == [(2, 16), (2, 8), (16, 8)]
    assert hooks.fused_a_gemm(tuned, x, w.t(), out) is out


def test_a_router_gives_the_type_that_was_tuned(operator: Noting) -> None:
    x, w = torch.zeros(2, 8, dtype=BF16), torch.zeros(16, 8, dtype=BF16)
    tuned = Tuned(operator, {"OUT": "fp32"})
    assert hooks.router_gemm(tuned, x, w, out_dtype=BF16) is ORIGINAL
    assert hooks.router_gemm(tuned, x, w, out_dtype=torch.float32).dtype == torch.float32
    assert hooks.router_gemm(Tuned(operator, CHOICES), x, w, BF16).dtype == BF16


def test_weights_are_dequantized_into_the_type_of_their_scales(
    tuned: Tuned, operator: Noting
) -> None:
    words, scales = torch.zeros(256, 4, dtype=torch.int32), torch.zeros(2, 32, dtype=torch.float16)
    out = hooks.awq_dequantize(tuned, words, scales, words[:2])
    assert (out.shape, out.dtype) == ((256, 32), torch.float16)
    assert operator.tensors[1:3] == (words, scales)


def test_a_router_gives_weights_and_ids(tuned: Tuned, operator: Noting) -> None:
    hidden, logits = torch.zeros(3, 16, dtype=BF16), torch.zeros(3, 8, dtype=BF16)
    weights, ids = hooks.fused_topk(tuned, hidden, logits, topk=2, renormalize=True)
    assert (weights.shape, weights.dtype) == ((3, 2), torch.float32)
    assert (ids.shape, ids.dtype) == ((3, 2), torch.int32)
    assert operator.tensors == (weights, ids, logits)


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_routes_are_sorted_into_arrays_of_sglangs_sizes(
    tuned: Tuned, operator: Noting, one_gpu: SimpleNamespace, tokens: int
) -> None:
    routes, experts, block = tokens * 2, 8, 16
    places = routes * block if routes < experts + 1 else routes + (experts + 1) * (block - 1)
    ids = torch.zeros(tokens, 2, dtype=torch.int32)
    found = hooks.moe_align_block_size(tuned, ids, block, experts)
    assert [tuple(one.shape) for one in found] == [(places,), (-(-places // block),), (1,)]
    assert {one.dtype for one in found} == {torch.int32}
    tiles = min(routes, -(-(routes + experts * (block - 1)) // block))
    assert operator.shapes == [(tiles * block,), (tiles,), (1,), (tokens, 2)]
    assert operator.tensors[0].data_ptr() == found[0].data_ptr()
    assert operator.keywords == {"E": 8, "B": 16}


ROPE: dict[str, Any] = {
    "num_heads_q": 4,
    "num_heads_k": 2,
    "num_heads_v": 2,
    "head_dim": 8,
    "eps": 1e-6,
    "base": 1_000_000,
    "is_neox": True,
    "factor": 1.0,
    "low": 0,
    "high": 0,
    "attention_factor": 1.0,
}


def rope(tuned: Tuned, **other: Any) -> Any:
    qkv, w = torch.zeros(3, 64, dtype=BF16), torch.zeros(8, dtype=BF16)
    positions = torch.zeros(3, dtype=torch.int32)
    arrays = {"qkv": qkv, "q_weight": w, "k_weight": w, "position_ids": positions}
    return hooks.fused_qk_norm_rope(tuned, **{**arrays, **ROPE, **other})


def test_weights_come_transposed_and_scales_as_columns(tuned: Tuned, operator: Noting) -> None:
    out = scaled(tuned)
    assert (out.shape, out.dtype) == ((3, 8), BF16)
    assert operator.shapes == [(3, 8), (3, 256), (8, 256), (3, 1), (8, 1)]


def test_block_scales_of_rows_are_the_padded_array(tuned: Tuned, operator: Noting) -> None:
    assert by_blocks(tuned).shape == (3, 8)
    assert operator.shapes == [(3, 8), (3, 256), (8, 256), (2, 4), (1, 2)]
    assert operator.tensors[3].is_contiguous()


def test_heads_are_normalized_and_rotated_in_place(tuned: Tuned, operator: Noting) -> None:
    assert rope(tuned) is None
    assert operator.shapes == [(3, 64), (8,), (8,), (3,)]
    assert operator.keywords == {"Q": 4, "G": 2, "theta": 1e6, "eps": 1e-6}


X, W, S = torch.zeros(4, 256, dtype=BF16), torch.zeros(256, dtype=BF16), torch.zeros(4, 2)
V = torch.zeros(4, 2, 8, dtype=BF16)
IDS = torch.zeros(4, 2, dtype=torch.int32)
COLUMN = {"column_major_scales": True, "scale_tma_aligned": True}


def group(tuned: Tuned, **other: Any) -> Any:
    return hooks.per_token_group_quant_fp8(tuned, **{"x": X, "group_size": 128, **COLUMN, **other})


def routed(tuned: Tuned, **other: Any) -> Any:
    given = {"hidden_states": X, "gating_output": X, "topk": 2, "renormalize": True}
    return hooks.fused_topk(tuned, **{**given, **other})


F8 = torch.zeros(3, 256, dtype=torch.float8_e4m3fn)
F8_WEIGHTS = torch.zeros(8, 256, dtype=torch.float8_e4m3fn)


def scaled(tuned: Tuned, bias: Any = None, x_scale: Any = None, w: Any = F8_WEIGHTS) -> Any:
    of_x = torch.ones(3, 1) if x_scale is None else x_scale
    return hooks.fp8_scaled_mm(tuned, F8, w.t(), of_x, torch.ones(8), BF16, bias)


def by_blocks(tuned: Tuned, x_scale: Any = None, sizes: tuple[int, int] = (128, 128)) -> Any:
    of_x = torch.ones(2, 4).t()[:3] if x_scale is None else x_scale
    return hooks.fp8_blocks_mm(tuned, F8, F8_WEIGHTS, of_x, torch.ones(1, 2), [*sizes], BF16)


WEIGHTS = torch.zeros(8, 256, dtype=BF16)


def test_a_deterministic_mode_s_product_has_its_weights_as_a_layer_does(
    tuned: Tuned, operator: Noting
) -> None:
    x = torch.zeros(3, 256, dtype=BF16)
    out = hooks.invariant_product(tuned, x, WEIGHTS.t())
    assert (out.shape, out.dtype) == ((3, 8), BF16)
    assert operator.shapes == [(3, 8), (3, 256), (8, 256)]
    assert operator.tensors[2].data_ptr() == WEIGHTS.data_ptr()
    hooks.call_invariant_product(lambda x, w: x[:, :8] + w.shape[1], out, x, WEIGHTS)
    assert (out == 8).all()


def attended(
    tuned: Tuned, *, marked: bool = True, pages: int = 5000, **other: Any
) -> torch.Tensor | object:
    lengths = torch.ones(2, dtype=torch.int32)
    if marked:
        setattr(lengths, MARK, Lengths(1448, 0.5))
    cache = torch.zeros(pages, 1, 8, 64, dtype=BF16)
    given = {
        "q": torch.zeros(2, 32, 64, dtype=BF16),
        "k_cache": cache,
        "v_cache": cache,
        "page_table": torch.zeros(2, 3000, dtype=torch.int32),
        "cache_seqlens": lengths,
        "max_seqlen_q": 1,
        "softmax_scale": 0.125,
        "causal": True,
    }
    return hooks.decode_attention(tuned, **{**given, **other})


@pytest.mark.parametrize(("pages", "tokens"), [(5000, 1448), (1000, 998)])
def test_attention_is_told_of_the_lengths_that_a_graph_is_for(
    tuned: Tuned, operator: Noting, pages: int, tokens: int
) -> None:
    out = attended(tuned, pages=pages)
    assert isinstance(out, torch.Tensor)
    cache = (tokens + 2, 1, 8, 64)
    assert operator.shapes == [(2, 32, 64), (2, 32, 64), cache, cache, (2, 3000), (2,)]
    assert operator.keywords == {"L": 1448, "S": tokens, "G": 4, "scale": 0.125}
    mine = torch.zeros(2, 32, 64, dtype=BF16)
    assert attended(tuned, out=mine) is mine


LEFT: dict[str, Callable[[Tuned], Any]] = {
    "attention outside of a graph": lambda t: attended(t, marked=False),
    "a window": lambda t: attended(t, window_size=(1023, 0)),
    "scores with a cap": lambda t: attended(t, softcap=30.0),
    "sinks": lambda t: attended(t, sinks=W),
    "several queries": lambda t: attended(t, max_seqlen_q=4),
    "the part of a cascade": lambda t: attended(t, causal=False, return_softmax_lse=True),
    "keys with scales": lambda t: attended(t, k_descale=S, v_descale=S),
    "one split": lambda t: attended(t, num_splits=1),
    "a product with a bias": lambda t: hooks.invariant_product(t, X, WEIGHTS.t(), W),
    "weights that no layer has": lambda t: hooks.invariant_product(t, X, WEIGHTS.t().contiguous()),
    "rows with gaps": lambda t: hooks.rmsnorm(t, V[:, :, :4], W),
    "activations of some experts": lambda t: hooks.act_and_mul(t, X, None, IDS),
    "an output with gaps": lambda t: hooks.act_and_mul(t, V, V[:, :, :4]),
    "a merge onto what it reads": lambda t: hooks.merge_state(t, V, S, V.clone(), S.clone(), V),
    "scales with gaps": lambda t: hooks.per_token_quant_fp8(t, X, X, torch.zeros(4, 2)[:, :1]),
    "groups of 64": lambda t: group(t, group_size=64),
    "another floor": lambda t: group(t, eps=1e-6),
    "the other layout": lambda t: group(t, column_major_scales=False),
    "scales in powers of two": lambda t: group(t, scale_ue8m0=True),
    "an activation before": lambda t: group(t, fuse_silu_and_mul=True),
    "some rows of experts": lambda t: group(t, masked_m=IDS),
    "experts as a dimension": lambda t: group(t, x=X.view(2, 2, 256)),
    "one group a row": lambda t: group(t, x=X[:, :128].contiguous()),
    "columns that are not padded": lambda t: group(t, x=X[:3], scale_tma_aligned=False),
    "a bias": lambda t: scaled(t, bias=W),
    "one scale for all rows": lambda t: scaled(t, x_scale=torch.ones(1)),
    "weights by row": lambda t: scaled(t, w=F8_WEIGHTS.t().contiguous().t()),
    "scales by row": lambda t: by_blocks(t, x_scale=torch.ones(3, 2)),
    "blocks of 64": lambda t: by_blocks(t, sizes=(64, 128)),
    "sigmoid": lambda t: routed(t, scoring_func="sigmoid"),
    "weights as they are": lambda t: routed(t, renormalize=False),
    "packed routes": lambda t: routed(t, packed_out=IDS),
    "invalid experts": lambda t: hooks.moe_align_block_size(t, IDS, 16, 8, True),
    "another base": lambda t: rope(t, base=5e5),
    "yarn": lambda t: rope(t, factor=2.0),
    "part of a head": lambda t: rope(t, rotary_dim=4),
    "pairs side by side": lambda t: rope(t, is_neox=False),
}


@pytest.mark.parametrize("call", LEFT.values(), ids=LEFT)
def test_what_ours_is_not_for_is_left_to_sglang(
    tuned: Tuned, operator: Noting, one_gpu: SimpleNamespace, call: Callable[[Tuned], Any]
) -> None:
    assert call(tuned) is ORIGINAL
    assert not operator.tensors


def test_experts_on_several_gpus_have_ids_that_ours_is_not_for(
    tuned: Tuned, operator: Noting, one_gpu: SimpleNamespace
) -> None:
    one_gpu.moe_ep_size = 2
    assert hooks.moe_align_block_size(tuned, IDS, 16, 8) is ORIGINAL
    assert not operator.tensors


SERVED: dict[str, Callable[[Tuned], Any]] = {
    "rmsnorm": lambda t: hooks.rmsnorm(t, X, W),
    "fused_add_rmsnorm": lambda t: hooks.fused_add_rmsnorm(t, X, X.clone(), W),
    "silu_and_mul": lambda t: hooks.act_and_mul(t, X),
    "merge_state": lambda t: hooks.merge_state(t, V, S, V.clone(), S.clone()),
    "moe_sum_reduce": lambda t: hooks.moe_sum_reduce(t, V, X, 1.0),
    "moe_align_block_size": lambda t: hooks.moe_align_block_size(t, IDS, 16, 8),
    "topk_softmax": routed,
    "gemm_fp8": scaled,
    "gemm_invariant": lambda t: hooks.invariant_product(t, X, WEIGHTS.t()),
    "gate_up_silu": lambda t: hooks.llama_mlp(t, mlp(), torch.zeros(2, 8, dtype=BF16)),
    "gemm_small_m": lambda t: hooks.linear(t, None, layer(16, 8), torch.zeros(2, 8, dtype=BF16)),
    "per_token_quant_fp8": lambda t: hooks.per_token_quant_fp8(t, X, X, S[:, :1].contiguous()),
    "per_token_group_quant": group,
    "awq_dequantize": lambda t: hooks.awq_dequantize(t, IDS, X, IDS),
    "fused_qk_norm_rope": rope,
    "decode_attention": attended,
}


@pytest.mark.parametrize("name", sorted({one.operator for one in HOOKS}))
def test_where_no_kernel_serves_sglangs_own_does(name: str, one_gpu: SimpleNamespace) -> None:
    operator = Noting(serves=False)
    assert SERVED[name](Tuned(operator, CHOICES)) is ORIGINAL
    assert operator.tensors


@pytest.mark.parametrize("name", SERVED)
def test_an_adapter_gives_what_the_operator_takes(name: str, one_gpu: SimpleNamespace) -> None:
    operator, spec = Noting(), load_definition(SPACES / f"{name}.yaml").spec
    SERVED[name](Tuned(operator, CHOICES))
    arrays = [one for one in spec.arguments if not one.is_scalar and one.role != "scratch"]
    assert [one.dim() for one in operator.tensors] == [len(one.shape) for one in arrays]
    named = {one.name for one in spec.arguments if one.is_scalar}
    assert set(operator.keywords) <= named.union(spec.axes)


FALLBACKS: dict[str, tuple[list[str], dict[str, float], tuple[Any, ...]]] = {
    "rmsnorm": (["out", "x", "w"], {"eps": 0.5}, ("x", "w", 0.5, "out")),
    "fused_add_rmsnorm": (["x", "r", "w"], {"eps": 0.5}, ("x", "r", "w", 0.5)),
    "silu_and_mul": (["out", "x"], {}, ("x", "out")),
    "merge_state": (["v", "s", "a", "b", "c", "d"], {}, ("a", "b", "c", "d", "v", "s")),
    "moe_sum_reduce": (["y", "x"], {"scale": 2.5}, ("x", "y", 2.5)),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_in_a_compiled_graph_the_fallback_calls_sglangs_own(name: str) -> None:
    given, keywords, wanted = FALLBACKS[name]
    taken: list[tuple[Any, ...]] = []
    hook = next(one for one in HOOKS if one.operator == name)
    assert hook.fallback is not None
    hook.fallback(lambda *arguments: taken.append(arguments), *given, **keywords)
    assert taken == [wanted]
