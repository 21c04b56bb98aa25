"""Which of SGLang's functions tuned operators stand in for, and how a call of theirs becomes ours.

A copy of this file is part of every exported plugin.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

try:
    import torch
except ImportError:  # whoever writes a package needs the table alone
    torch = None

from tuner.extensions.runtime.pytorch.adapting import (
    GROUP,
    activated,
    are_whole,
    call_invariant_product,
    dequantized,
    invariant_product,
    quantized_by_group,
    suits_groups,
)
from tuner.extensions.runtime.pytorch.replacing import ORIGINAL, Engine, Hook, Tuned
from tuner.extensions.runtime.sglang.attention import (
    capture_one_shape,
    decode_attention,
    load_batch,
)

MOST_ROWS = 128  # of a product; with more, as in prefill, there is nothing to ask
THETAS = {"theta_1e6": 1.0e6, "theta_5e5": 5.0e5}


def rmsnorm(
    tuned: Tuned,
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> Any:
    """Normalize rows, of any number of leading dimensions."""
    if out is None:
        out = torch.empty_like(input)
    rows, result = input, out
    if input.dim() != 2:
        if not are_whole(input, out):
            return ORIGINAL
        rows, result = (one.view(-1, input.shape[-1]) for one in (input, out))
    return out if tuned.serves(result, rows, weight, eps=eps) else ORIGINAL


def _rmsnorm(original: Any, out: Any, x: Any, w: Any, eps: float = 1e-6) -> None:
    original(x, w, eps, out)


def fused_add_rmsnorm(
    tuned: Tuned,
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> Any:
    """Add and normalize in place; return None."""
    return None if tuned.serves(input, residual, weight, eps=eps) else ORIGINAL


def _fused_add_rmsnorm(original: Any, x: Any, residual: Any, w: Any, eps: float = 1e-6) -> None:
    original(x, residual, w, eps)


def act_and_mul(
    tuned: Tuned,
    input: torch.Tensor,
    out: torch.Tensor | None = None,
    expert_ids: torch.Tensor | None = None,
    expert_step: int = 1,
) -> Any:
    """Activate and multiply all rows; with `expert_ids` SGLang leaves some of them out."""
    if expert_ids is not None:
        return ORIGINAL
    return activated(tuned, input, out)


def _act_and_mul(original: Any, out: Any, input: Any) -> None:
    original(input, out)


def merge_state(
    tuned: Tuned,
    v_a: torch.Tensor,
    s_a: torch.Tensor,
    v_b: torch.Tensor,
    s_b: torch.Tensor,
    v_merged: torch.Tensor | None = None,
    s_merged: torch.Tensor | None = None,
) -> Any:
    """Merge two states into new arrays or the caller's, unless these are also what is read."""
    given = [one for one in (v_merged, s_merged) if one is not None]
    if given and (torch.compiler.is_compiling() or _meet(given, (v_a, s_a, v_b, s_b))):
        return ORIGINAL
    v = torch.empty_like(v_a) if v_merged is None else v_merged
    s = torch.empty_like(s_a) if s_merged is None else s_merged
    return (v, s) if tuned.serves(v, s, v_a, s_a, v_b, s_b) else ORIGINAL


def _merge_state(original: Any, v: Any, s: Any, v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> None:
    original(v_a, s_a, v_b, s_b, v, s)


def moe_sum_reduce(
    tuned: Tuned,
    input_tensor: torch.Tensor,
    output_tensor: torch.Tensor,
    routed_scaling_factor: float = 0,
) -> Any:
    """Add up the experts of each token; return None."""
    served = tuned.serves(output_tensor, input_tensor, scale=float(routed_scaling_factor))
    return None if served else ORIGINAL


def moe_sum_compiled(
    tuned: Tuned, x: torch.Tensor, out: torch.Tensor, routed_scaling_factor: float
) -> Any:
    """Do the same for up to 32 tokens, where SGLang has a function that PyTorch compiles."""
    return moe_sum_reduce(tuned, x, out, routed_scaling_factor)


def _moe_sum_reduce(original: Any, y: Any, x: Any, scale: float = 0.0) -> None:
    original(x, y, scale)


def fp8_scaled_mm(
    tuned: Tuned,
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    out_dtype: Any,
    bias: torch.Tensor | None = None,
) -> Any:
    """Multiply rows by weights, which SGLang passes transposed, with a scale for each of both."""
    w, scales = mat_b.t(), (scales_a, scales_b)
    wanted = (mat_a.shape[0], w.shape[0])
    one_each = tuple(scale.numel() for scale in scales) == wanted
    if bias is not None or not one_each or len(mat_a) > MOST_ROWS:
        return ORIGINAL
    if not are_whole(*scales) or not are_whole(mat_a, w):
        return ORIGINAL
    out = torch.empty(wanted, device=mat_a.device, dtype=out_dtype)
    columns = (scale.view(-1, 1) for scale in scales)
    return out if tuned.serves(out, mat_a, w, *columns) else ORIGINAL


def _fp8_scaled_mm(original: Any, out: Any, x: Any, w: Any, x_scale: Any, w_scale: Any) -> None:
    out.copy_(original(x, w.t(), x_scale, w_scale, out.dtype, None))


def fp8_blocks_mm(
    tuned: Tuned,
    A: torch.Tensor,  # noqa: N803 - SGLang's names
    B: torch.Tensor,  # noqa: N803
    As: torch.Tensor,  # noqa: N803
    Bs: torch.Tensor,  # noqa: N803
    block_size: list[int],
    output_dtype: Any,
) -> Any:
    """Multiply with block scales, those of the rows by column as DeepGEMM has them."""
    rows, depth = A.shape[0], A.shape[-1]
    padded = -(-rows // 4) * 4
    by_column = As.shape == (rows, depth // GROUP) and As.stride() == (1, padded)
    if A.dim() != 2 or rows > MOST_ROWS or not by_column:
        return ORIGINAL
    if list(block_size) != [GROUP, GROUP] or depth % GROUP:
        return ORIGINAL
    out = torch.empty((rows, B.shape[0]), device=A.device, dtype=output_dtype)
    scales = As.as_strided((depth // GROUP, padded), (padded, 1))
    return out if tuned.serves(out, A, B, scales, Bs) else ORIGINAL


def linear(
    tuned: Tuned, method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    """Multiply rows by a layer's weights, which nothing writes while a model runs."""
    if bias is not None:
        return ORIGINAL
    return _product(tuned, x, layer.weight)


def llama_mlp(tuned: Tuned, mlp: Any, x: torch.Tensor, forward_batch: Any = None) -> Any:
    """Do the first products of a gated MLP and its activation in one, then the last product."""
    gated = _gated(tuned, mlp.gate_up_proj, x)
    return gated if gated is ORIGINAL else mlp.down_proj(gated)[0]


def qwen_mlp(tuned: Tuned, mlp: Any, x: torch.Tensor, forward_batch: Any = None) -> Any:
    """Do the same for Qwen's, whose last product knows of the batch."""
    gated = _gated(tuned, mlp.gate_up_proj, x)
    if gated is ORIGINAL:
        return ORIGINAL
    return mlp.down_proj(gated, forward_batch=forward_batch)[0]


def _gated(tuned: Tuned, layer: Any, x: torch.Tensor) -> Any:
    # What wraps a layer, for LoRA, has no such method of its own.
    plain = type(getattr(layer, "quant_method", None)).__name__ == "UnquantizedLinearMethod"
    if not plain or layer.bias is not None or x.dim() != 2 or len(x) > MOST_ROWS:
        return ORIGINAL
    out = x.new_empty(len(x), len(layer.weight) // 2)
    return out if tuned.serves(out, x, layer.weight) else ORIGINAL


def fused_a_gemm(
    tuned: Tuned, mat_a: torch.Tensor, mat_b: torch.Tensor, output: Any = None, backend: Any = None
) -> Any:
    """Multiply rows by weights that come transposed."""
    return _product(tuned, mat_a, mat_b.t(), output)


def router_gemm(
    tuned: Tuned,
    hidden_states: torch.Tensor,
    router_weights: torch.Tensor,
    out_dtype: torch.dtype | None = None,
    output: torch.Tensor | None = None,
) -> Any:
    """Multiply rows by a router's weights; without `output` it allocates one of `out_dtype`."""
    asked = output.dtype if output is not None else out_dtype
    if (asked == torch.float32) != (tuned.choices["OUT"] == "fp32"):
        return ORIGINAL
    return _product(tuned, hidden_states, router_weights, output)


def _product(
    tuned: Tuned, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None = None
) -> Any:
    if x.dim() < 2 or not x.is_contiguous() or x.numel() > MOST_ROWS * x.shape[-1]:
        return ORIGINAL
    rows = x.view(-1, x.shape[-1])
    if out is None:
        dtype = torch.float32 if tuned.choices["OUT"] == "fp32" else x.dtype
        out = x.new_empty(*x.shape[:-1], w.shape[0], dtype=dtype)
    return out if tuned.serves(out.view(len(rows), -1), rows, w) else ORIGINAL


def per_token_quant_fp8(
    tuned: Tuned, input: torch.Tensor, output_q: torch.Tensor, output_s: torch.Tensor
) -> Any:
    """Quantize rows; SGLang has their scales as a column. Return None."""
    if not output_s.is_contiguous():
        return ORIGINAL
    return None if tuned.serves(output_q, output_s.view(-1), input) else ORIGINAL


def _per_token_quant_fp8(original: Any, q: Any, scale: Any, x: Any) -> None:
    original(x, q, scale.view(-1, 1))


def per_token_group_quant_fp8(
    tuned: Tuned,
    x: torch.Tensor,
    group_size: int,
    eps: float = 1e-10,
    column_major_scales: bool = False,
    scale_tma_aligned: bool = False,
    scale_ue8m0: bool = False,
    fuse_silu_and_mul: bool = False,
    masked_m: torch.Tensor | None = None,
) -> Any:
    """Quantize groups of rows into new arrays, in the one layout that was tuned for."""
    # SGLang leaves one group a row to its quantization by rows.
    if (
        not suits_groups(tuned, x, group_size, eps, column_major_scales, scale_tma_aligned)
        or x.shape[1] == GROUP
        or scale_ue8m0
        or fuse_silu_and_mul
        or masked_m is not None
    ):
        return ORIGINAL
    return quantized_by_group(tuned, x)


def awq_dequantize(
    tuned: Tuned, qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor
) -> Any:
    """Dequantize weights."""
    return dequantized(tuned, qweight, scales, qzeros)


def fused_topk(
    tuned: Tuned,
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool,
    correction_bias: torch.Tensor | None = None,
    scoring_func: str = "softmax",
    routed_scaling_factor: float | None = None,
    apply_routed_scaling_factor_on_output: bool | None = False,
    num_fused_shared_experts: int = 0,
    packed_out: torch.Tensor | None = None,
    num_token_non_padded: torch.Tensor | None = None,
) -> Any:
    """Route by softmax; there SGLang's looks at no bias, factor or shared expert either."""
    wanted = "true" if renormalize else "false"
    if (
        scoring_func != "softmax"
        or packed_out is not None
        or wanted != tuned.choices["RENORMALIZE"]
        or hidden_states.shape[0] != gating_output.shape[0]
    ):
        return ORIGINAL
    shape, device = (gating_output.shape[0], topk), gating_output.device
    weights = torch.empty(shape, device=device, dtype=torch.float32)
    ids = torch.empty(shape, device=device, dtype=torch.int32)
    return (weights, ids) if tuned.serves(weights, ids, gating_output) else ORIGINAL


def moe_align_block_size(
    tuned: Tuned,
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    ignore_invalid_expert: bool = False,
) -> Any:
    """Sort routes by expert into arrays of SGLang's sizes; the tuned kernel fills their starts.

    What it leaves is behind `num_tokens_post_pad`, which nothing reads.
    """
    if ignore_invalid_expert or topk_ids.dim() != 2 or not _has_all_experts():
        return ORIGINAL
    routes, device = topk_ids.numel(), topk_ids.device
    places = routes * block_size
    if routes > num_experts:
        places = routes + (num_experts + 1) * (block_size - 1)
    sorted_ids = torch.empty(places, device=device, dtype=torch.int32)
    expert_ids = torch.empty(-(-places // block_size), device=device, dtype=torch.int32)
    used = torch.empty(1, device=device, dtype=torch.int32)
    tiles = min(routes, -(-(routes + num_experts * (block_size - 1)) // block_size))
    starts = sorted_ids[: tiles * block_size], expert_ids[:tiles]
    served = tuned.serves(*starts, used, topk_ids, E=num_experts, B=block_size)
    return (sorted_ids, expert_ids, used) if served else ORIGINAL


def fused_qk_norm_rope(
    tuned: Tuned,
    qkv: torch.Tensor,
    num_heads_q: int,
    num_heads_k: int,
    num_heads_v: int,
    head_dim: int,
    eps: float,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    base: float,
    is_neox: bool,
    position_ids: torch.Tensor,
    factor: float,
    low: float,
    high: float,
    attention_factor: float,
    rotary_dim: int | None = None,
) -> Any:
    """Normalize and rotate whole heads in place, without yarn; return None.

    Variants may have the frequencies of their theta written in: another base is not theirs.
    """
    if (
        (factor, attention_factor, rotary_dim or head_dim) != (1.0, 1.0, head_dim)
        or num_heads_k != num_heads_v
        or is_neox != (tuned.choices["STYLE"] == "neox")
        or base != THETAS[tuned.choices["THETA"]]
    ):
        return ORIGINAL
    arrays = qkv, q_weight, k_weight, position_ids
    served = tuned.serves(*arrays, Q=num_heads_q, G=num_heads_k, theta=float(base), eps=eps)
    return None if served else ORIGINAL


def _meet(written: Any, read: Any) -> bool:
    """Say whether an array is both written and read; SGLang passes whole arrays only."""
    places = {one.data_ptr() for one in read}
    return any(one.data_ptr() in places for one in written)


def _has_all_experts() -> bool:
    """Say whether no id is -1, which stands for other GPUs' experts and for padded tokens.

    SGLang masks padded tokens only where experts are spread over GPUs (0.5.17).
    """
    context = sys.modules.get("sglang.srt.runtime_context")
    return context is not None and context.get_parallel().moe_ep_size == 1


_ACTIVATIONS = "sglang.kernels.ops.activation.activation"
_FP8 = "sglang.kernels.ops.quantization.fp8_kernel"
_MOE = "sglang.srt.layers.moe"
_UNQUANTIZED = "sglang.srt.layers.quantization.unquant"
_GEMM = "sglang.kernels.ops.gemm"
_DECODER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"

# Of up to MOST_ROWS.
_PRODUCTS = (
    Hook("gemm_small_m", f"{_UNQUANTIZED}.UnquantizedLinearMethod.apply", linear, {"OUT": "bf16"}),
    Hook("gemm_small_m", f"{_GEMM}.fused_a_gemm.dsv3_fused_a_gemm", fused_a_gemm, {"OUT": "bf16"}),
    Hook("gemm_small_m", f"{_GEMM}.dsv3_router_gemm.dsv3_router_gemm", router_gemm),
    Hook("gate_up_silu", "sglang.srt.models.llama.LlamaMLP.forward", llama_mlp),
    Hook("gate_up_silu", "sglang.srt.models.qwen2.Qwen2MLP.forward", qwen_mlp),
    Hook(
        "gemm_fp8", "sgl_kernel.fp8_scaled_mm", fp8_scaled_mm, {"SCALES": "token"}, _fp8_scaled_mm
    ),
    Hook("gemm_fp8", f"{_FP8}.w8a8_block_fp8_matmul_deepgemm", fp8_blocks_mm, {"SCALES": "block"}),
)
HOOKS = (
    Hook("rmsnorm", "sgl_kernel.rmsnorm", rmsnorm, {"GEMMA": "false"}, _rmsnorm),
    Hook("rmsnorm", "sgl_kernel.gemma_rmsnorm", rmsnorm, {"GEMMA": "true"}, _rmsnorm),
    Hook(
        "fused_add_rmsnorm",
        "sgl_kernel.fused_add_rmsnorm",
        fused_add_rmsnorm,
        {"GEMMA": "false", "ROUNDED": "false"},
        _fused_add_rmsnorm,
    ),
    Hook(
        "fused_add_rmsnorm",
        "sgl_kernel.gemma_fused_add_rmsnorm",
        fused_add_rmsnorm,
        {"GEMMA": "true", "ROUNDED": "false"},
        _fused_add_rmsnorm,
    ),
    *(
        Hook(
            "silu_and_mul",
            f"{_ACTIVATIONS}.{name}_and_mul",
            act_and_mul,
            {"ACTIVATION": name},
            _act_and_mul,
        )
        for name in ("silu", "gelu", "gelu_tanh")
    ),
    Hook("merge_state", "sgl_kernel.merge_state_v2", merge_state, {}, _merge_state),
    Hook("moe_sum_reduce", "sgl_kernel.moe_sum_reduce", moe_sum_reduce, {}, _moe_sum_reduce),
    Hook(
        "moe_sum_reduce",
        f"{_MOE}.moe_runner.triton_utils.fused_moe.moe_sum_reduce_torch_compile",
        moe_sum_compiled,
        {},
        _moe_sum_reduce,
    ),
    Hook(
        "moe_align_block_size",
        f"{_MOE}.moe_runner.triton_utils.moe_align_block_size.moe_align_block_size",
        moe_align_block_size,
    ),
    Hook("topk_softmax", f"{_MOE}.topk.fused_topk", fused_topk),
    Hook(
        "decode_attention",
        "sglang.kernels.ops.attention.flash_attention.flash_attn_with_kvcache",
        decode_attention,
        {"KV": "bf16"},
    ),
    *(
        Hook("decode_attention", f"{_DECODER}.{one.__name__}", one, {"KV": "bf16"}, around=True)
        for one in (capture_one_shape, load_batch)
    ),
    *(replace(hook, all_rows=False) for hook in _PRODUCTS),
    Hook(
        "gemm_invariant",
        "sglang.srt.batch_invariant_ops.batch_invariant_ops.matmul_persistent",
        invariant_product,
        {},
        call_invariant_product,
    ),
    Hook(
        "per_token_quant_fp8",
        "sglang.kernels.ops.quantization.sgl_per_token_quant_fp8",
        per_token_quant_fp8,
        {},
        _per_token_quant_fp8,
    ),
    # Two names of one function, and modules import it by either.
    *(
        Hook(
            "per_token_group_quant",
            f"{_FP8}.{name}",
            per_token_group_quant_fp8,
            {"QUANT": "fp8", "FUSED": "false"},
        )
        for name in ("per_token_group_quant_fp8", "sglang_per_token_group_quant_fp8")
    ),
    Hook(
        "awq_dequantize",
        "sglang.srt.hardware_backend.gpu.quantization.awq_kernels.awq_dequantize",
        awq_dequantize,
    ),
    Hook(
        "fused_qk_norm_rope",
        "sglang.kernels.ops.attention.fused_qknorm_rope.fused_qk_norm_rope",
        fused_qk_norm_rope,
        {},
        None,
    ),
)
# When SGLang calls it, where that is not in every step of every model.
ONLY = {
    "rmsnorm": "the first norm of a model; DeepSeek's latents of queries",
    "decode_attention": "decode steps in CUDA graphs with FA3, of lengths near those tuned",
    "merge_state": "attention over a cached prefix (DeepSeek's prefill) and trees of drafts",
    "moe_align_block_size": "MoE in Triton, experts not spread over GPUs (no expert parallelism)",
    "topk_softmax": "routers by softmax without groups (Qwen3 MoE; DeepSeek-V3's is another)",
    "gemm_fp8": "linear layers in fp8, with a scale a channel or by blocks in DeepGEMM",
    "gemm_invariant": "linear layers in bf16, with `--enable-deterministic-inference`",
    "gate_up_silu": "the gated MLP of Llama and Qwen in bf16, for up to 128 tokens",
    "gemm_small_m": "linear layers of up to 128 tokens in bf16; routers of DeepSeek-V3 in float32",
    "per_token_quant_fp8": "weights in fp8 with a scale a channel",
    "per_token_group_quant": "weights in fp8 by blocks (DeepSeek-V3)",
    "awq_dequantize": "`--quantization awq`; SGLang chooses Marlin by itself",
    "fused_qk_norm_rope": "Qwen3 MoE with `--enable-fused-qk-norm-rope`",
}
# Of choices that none of the hooks is for.
WHY_NOT = {
    "decode_attention": "for keys in fp8 it has queries in fp8, which KV=fp8 takes in bf16",
    "gemm_invariant_fp8": "no hook is for fp8 in its deterministic mode yet",
    "linear_add_rmsnorm": "its products and its norms are two functions, of two modules",
    "fused_add_rmsnorm": "it normalizes the sum before it is rounded, as ROUNDED=false does",
    "per_token_group_quant": "what it calls is that of QUANT=fp8 and FUSED=false",
}
ENGINE = Engine("SGLang", "sglang", "sglang.srt.plugins", ("0.5.17",), HOOKS, ONLY, WHY_NOT)
