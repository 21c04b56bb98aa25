"""Map vLLM's operators to tuned ones, and adapt their calls.

A copy of this file is part of every exported plugin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

try:
    import torch
except ImportError:  # whoever writes a package needs the table alone
    torch = None

from tuner.extensions.runtime.pytorch.adapting import (
    activated,
    call_invariant_product,
    dequantized,
    invariant_product,
    quantized_by_group,
    suits_groups,
)
from tuner.extensions.runtime.pytorch.replacing import ORIGINAL, Engine, Hook, Tuned


@dataclass(frozen=True)
class Implementation(Hook):
    """Of an operator of vLLM's IR; `supports` has its signature, and is asked for fakes too."""

    supports: Callable[..., bool] = lambda *_: True


def rms_norm(
    tuned: Tuned,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> Any:
    """Normalize rows into a new array."""
    out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    return out if tuned.serves(out, x, weight, eps=epsilon) else ORIGINAL


def supports_rms_norm(x: Any, weight: Any, epsilon: Any, variance_size: Any = None) -> bool:
    """Say whether these are whole rows; heads of q and k, say, are left to what is fused."""
    return variance_size is None and weight is not None and _are_rows(x, weight)


def _rms_norm(original: Any, out: Any, x: Any, w: Any, eps: float = 1e-6) -> None:
    torch.ops._C.rms_norm(out, x, w, eps)


def fused_add_rms_norm(
    tuned: Tuned,
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> Any:
    """Add and normalize in place; return both arrays."""
    return (x, x_residual) if tuned.serves(x, x_residual, weight, eps=epsilon) else ORIGINAL


def supports_fused_add_rms_norm(
    x: Any, x_residual: Any, weight: Any, epsilon: Any, variance_size: Any = None
) -> bool:
    """Say whether these are whole rows."""
    return supports_rms_norm(x, weight, epsilon, variance_size) and _are_rows(x_residual, weight)


def _fused_add_rms_norm(original: Any, x: Any, residual: Any, w: Any, eps: float = 1e-6) -> None:
    torch.ops._C.fused_add_rms_norm(x, residual, w, eps)


def _are_rows(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Ask for nothing that the number of rows decides, which a compiled graph leaves open."""
    return bool(
        x.dim() == 2
        and x.dtype == weight.dtype == torch.bfloat16
        and x.stride(1) == 1
        and x.stride(0) == x.shape[1]
    )


def silu_and_mul(tuned: Tuned, layer: Any, x: torch.Tensor) -> Any:
    """Activate and multiply the rows of a dense layer."""
    return activated(tuned, x)


def gelu_and_mul(tuned: Tuned, layer: Any, x: torch.Tensor) -> Any:
    """Do the same with either form of GELU, of which the layer has one."""
    other = (layer.approximate == "tanh") != (tuned.choices["ACTIVATION"] == "gelu_tanh")
    return ORIGINAL if other else activated(tuned, x)


def apply_moe_activation(
    tuned: Tuned,
    activation: Any,
    output: torch.Tensor,
    input: torch.Tensor,
    *,
    activation_config: Any = None,
    topk_ids: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
    valid_token_counts: torch.Tensor | None = None,
) -> Any:
    """Activate and multiply the rows of all experts, without limits."""
    if (
        activation.name != tuned.choices["ACTIVATION"].upper()
        or getattr(activation_config, "clamp_limit", None) is not None
        or valid_token_counts is not None
    ):
        return ORIGINAL
    return activated(tuned, input, output)


def _silu_and_mul(original: Any, out: Any, x: Any) -> None:
    torch.ops._C.silu_and_mul(out, x)


def _gelu_and_mul(original: Any, out: Any, x: Any) -> None:
    torch.ops._C.gelu_and_mul(out, x)


def _gelu_tanh_and_mul(original: Any, out: Any, x: Any) -> None:
    torch.ops._C.gelu_tanh_and_mul(out, x)


def moe_sum(
    tuned: Tuned,
    input: torch.Tensor,
    output: torch.Tensor,
    topk_ids: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
) -> Any:
    """Add up all experts of each token; return None."""
    if topk_ids is not None or expert_map is not None:
        return ORIGINAL
    return None if tuned.serves(output, input, scale=1.0) else ORIGINAL


def topk_softmax(
    tuned: Tuned,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    token_expert_indices: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    e_score_correction_bias: torch.Tensor | None = None,
    is_padding: torch.Tensor | None = None,
) -> Any:
    """Route by softmax; return None. Nobody reads `token_expert_indices`, which stay."""
    if (
        renormalize != (tuned.choices["RENORMALIZE"] == "true")
        or e_score_correction_bias is not None
        or is_padding is not None
    ):
        return ORIGINAL
    return None if tuned.serves(topk_weights, topk_ids, gating_output) else ORIGINAL


def moe_align_block_size(
    tuned: Tuned,
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    expert_map: torch.Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
    return_scatter_idx: bool = False,
) -> Any:
    """Sort routes by expert into arrays that hold any routing, as vLLM's do.

    Its places are no whole tiles where `pad_sorted_ids` is false, and the tuned kernel fills whole
    ones: the array is as long as it needs, and what is returned as long as vLLM's.
    """
    if (
        expert_map is not None
        or return_scatter_idx
        or topk_ids.dim() != 2
        or not _has_all_experts()
    ):
        return ORIGINAL
    routes, device = topk_ids.numel(), topk_ids.device
    places = routes + num_experts * (block_size - 1)
    if routes < num_experts:
        places = min(places, routes * block_size)
    tiles = -(-places // block_size)
    sorted_ids = torch.empty(tiles * block_size, device=device, dtype=torch.int32)
    expert_ids = torch.empty(tiles, device=device, dtype=torch.int32)
    used = torch.empty(1, device=device, dtype=torch.int32)
    if not tuned.serves(sorted_ids, expert_ids, used, topk_ids, E=num_experts, B=block_size):
        return ORIGINAL
    return sorted_ids if pad_sorted_ids else sorted_ids[:places], expert_ids, used


def scaled_fp8_quant(
    tuned: Tuned,
    input: torch.Tensor,
    scale: torch.Tensor | None = None,
    num_token_padding: int | None = None,
    scale_ub: torch.Tensor | None = None,
    use_per_token_if_dynamic: bool = False,
    output: torch.Tensor | None = None,
    group_shape: tuple[int, int] | None = None,
) -> Any:
    """Quantize rows with a scale of their own each, which vLLM has as a column."""
    if (
        not use_per_token_if_dynamic
        or input.dim() != 2
        or any(one is not None for one in (scale, num_token_padding, scale_ub))
    ):
        return ORIGINAL
    if output is None:
        output = torch.empty(input.shape, device=input.device, dtype=torch.float8_e4m3fn)
    scales = torch.empty((input.shape[0], 1), device=input.device, dtype=torch.float32)
    return (output, scales) if tuned.serves(output, scales.view(-1), input) else ORIGINAL


def per_token_group_quant_fp8(
    tuned: Tuned,
    x: torch.Tensor,
    group_size: int,
    eps: float = 1e-10,
    dtype: torch.dtype | None = None,
    column_major_scales: bool = False,
    tma_aligned_scales: bool = False,
    out_q: torch.Tensor | None = None,
    use_ue8m0: bool | None = None,
) -> Any:
    """Quantize groups of rows, in the one layout that was tuned for."""
    if (
        not suits_groups(tuned, x, group_size, eps, column_major_scales, tma_aligned_scales)
        or dtype not in (None, torch.float8_e4m3fn)
        or (_has_powers_of_two() if use_ue8m0 is None else use_ue8m0)
    ):
        return ORIGINAL
    return quantized_by_group(tuned, x, out_q)


def awq_dequantize(
    tuned: Tuned,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    split_k_iters: int,
    thx: int,
    thy: int,
) -> Any:
    """Dequantize weights; the last three only say how vLLM's would be launched."""
    return dequantized(tuned, qweight, scales, zeros)


def _has_all_experts() -> bool:
    """Say whether no id is -1, which stands for padded tokens and for other ranks' (0.32.0)."""
    groups, envs = map(sys.modules.get, ("vllm.distributed.parallel_state", "vllm.envs"))
    if groups is None or envs is None or envs.VLLM_MOE_SKIP_PADDING or groups._DP is None:
        return False
    return bool(groups.get_dp_group().world_size == 1)


def _has_powers_of_two() -> bool:
    """Say whether DeepGEMM wants scales that are powers of two, which vLLM asks for by default."""
    module = sys.modules.get("vllm.utils.deep_gemm")
    return module is None or bool(module.is_deep_gemm_e8m0_used())


_ACTIVATIONS = "vllm.model_executor.layers.activation"
_MOE = "vllm.model_executor.layers.fused_moe"
_OPERATORS = "vllm._custom_ops"

HOOKS = (
    Implementation(
        "rmsnorm",
        "vllm.ir.ops.rms_norm",
        rms_norm,
        {"GEMMA": "false"},
        _rms_norm,
        supports_rms_norm,
    ),
    Implementation(
        "fused_add_rmsnorm",
        "vllm.ir.ops.fused_add_rms_norm",
        fused_add_rms_norm,
        {"GEMMA": "false", "ROUNDED": "false"},
        _fused_add_rms_norm,
        supports_fused_add_rms_norm,
    ),
    *(
        Hook("silu_and_mul", target, adapter, {"ACTIVATION": activation}, fallback)
        for activation, layer, in_layer, fallback in (
            ("silu", "SiluAndMul", silu_and_mul, _silu_and_mul),
            ("gelu", "GeluAndMul", gelu_and_mul, _gelu_and_mul),
            ("gelu_tanh", "GeluAndMul", gelu_and_mul, _gelu_tanh_and_mul),
        )
        for target, adapter in (
            (f"{_ACTIVATIONS}.{layer}", in_layer),
            (f"{_MOE}.activation.apply_moe_activation", apply_moe_activation),
        )
    ),
    Hook("moe_sum_reduce", f"{_OPERATORS}.moe_sum", moe_sum),
    Hook("topk_softmax", f"{_OPERATORS}.topk_softmax", topk_softmax),
    Hook(
        "moe_align_block_size",
        f"{_MOE}.moe_align_block_size.moe_align_block_size",
        moe_align_block_size,
    ),
    Hook("per_token_quant_fp8", f"{_OPERATORS}.scaled_fp8_quant", scaled_fp8_quant),
    Hook(
        "per_token_group_quant",
        "vllm.model_executor.layers.quantization.utils.fp8_utils.per_token_group_quant_fp8",
        per_token_group_quant_fp8,
        {"QUANT": "fp8", "FUSED": "false"},
    ),
    Hook("awq_dequantize", f"{_OPERATORS}.awq_dequantize", awq_dequantize),
    Hook(
        "gemm_invariant",
        "vllm.model_executor.determinism.batch_invariant.matmul_persistent",
        invariant_product,
        {},
        call_invariant_product,
    ),
)
# When vLLM calls it, where that is not in every step of every model.
ONLY = {
    "rmsnorm": "the first norm of a model; of compiled models those without quantized weights",
    "fused_add_rmsnorm": "every layer; of compiled models those without quantized weights",
    "silu_and_mul": "MoE in Triton; dense layers, of compiled models without quantized weights",
    "moe_sum_reduce": "MoE in Triton and Marlin, experts not spread over GPUs",
    "moe_align_block_size": "MoE in Triton and Marlin, with `VLLM_MOE_SKIP_PADDING=0`",
    "topk_softmax": "routers by softmax without groups, with `VLLM_MOE_SKIP_PADDING=0`",
    "per_token_quant_fp8": "weights in fp8 with a scale a channel, not compiled or `+quant_fp8`",
    "per_token_group_quant": "weights in fp8 by blocks, with `VLLM_USE_DEEP_GEMM_E8M0=0`; experts",
    "gemm_invariant": "linear layers in bf16, with `VLLM_BATCH_INVARIANT=1`",
    "awq_dequantize": "`--quantization awq`, from 256 tokens on, not compiled",
}
# Of operators and choices that no hook is for.
WHY_NOT = {
    "decode_attention": "its CUDA graphs are found by tokens and requests alone, not by lengths",
    "linear_add_rmsnorm": "its products and its norms are two functions, of two modules",
    "gate_up_silu": "its products and its activations are two functions",
    "gemm_fp8": "no hook is for its products in fp8 yet",
    "gemm_invariant_fp8": "no hook is for its products in fp8 yet",
    "gemm_small_m": "its linear layers call PyTorch, whatever their shape",
    "rmsnorm": "Gemma's norms have their weights in float32 there",
    "fused_add_rmsnorm": "its norm is of the sum before it is rounded, and Gemma's in float32",
    "merge_state": "its logarithms of sums are ordered by head, then by token",
    "per_token_group_quant": "what it calls is that of QUANT=fp8 and FUSED=false",
    "fused_qk_norm_rope": "it takes a table of cosines and sines, whatever they are of",
}
ENGINE = Engine("vLLM", "vllm", "vllm.general_plugins", ("0.32.0",), HOOKS, ONLY, WHY_NOT)
