"""A product with block scales whose config is a dict, in the style of serving engines."""

import functools
import json
import os
from typing import Any, Dict, List, Optional

import torch
import triton
import triton.language as tl


@triton.jit
def _scaled_product(
    A, B, C, As, Bs,
    M, N, K, group_n, group_k,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    stride_as_m, stride_as_k, stride_bs_k, stride_bs_n,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_m, num_n = tl.cdiv(M, BLOCK_SIZE_M), tl.cdiv(N, BLOCK_SIZE_N)
    in_group = GROUP_SIZE_M * num_n
    first_m = (pid // in_group) * GROUP_SIZE_M
    size_m = min(num_m - first_m, GROUP_SIZE_M)
    pid_m = first_m + (pid % size_m)
    pid_n = (pid % in_group) // size_m
    offs_m = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_n = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = A + (offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = B + (offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)
    as_ptrs = As + offs_m * stride_as_m
    bs_ptrs = Bs + (offs_n // group_n) * stride_bs_n
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        at = (k * BLOCK_SIZE_K) // group_k
        a_s = tl.load(as_ptrs + at * stride_as_k)
        b_s = tl.load(bs_ptrs + at * stride_bs_k)
        total += tl.dot(a, b).to(tl.float32) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    out_m = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    out_n = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = C + stride_cm * out_m[:, None] + stride_cn * out_n[None, :]
    tl.store(c_ptrs, total.to(C.dtype.element_ty), mask=(out_m[:, None] < M) & (out_n[None, :] < N))


@functools.lru_cache
def tuned_configs(N: int, K: int) -> Optional[Dict[int, Any]]:
    path = os.path.join(os.path.dirname(__file__), f"N={N},K={K}.json")
    if os.path.exists(path):
        with open(path) as file:
            return {int(key): value for key, value in json.load(file).items()}
    return None


def scaled_product(
    A: torch.Tensor,
    B: torch.Tensor,
    As: torch.Tensor,
    Bs: torch.Tensor,
    block_size: List[int] = [64, 64],
    output_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """Multiply A by the transpose of B, both with scales by blocks."""
    block_n, block_k = block_size[0], block_size[1]
    assert A.shape[-1] == B.shape[-1]
    assert A.shape[:-1] == As.shape[:-1] and A.is_contiguous()
    assert triton.cdiv(A.shape[-1], block_k) == As.shape[-1]
    M = A.numel() // A.shape[-1]
    assert B.ndim == 2 and Bs.ndim == 2
    N, K = B.shape
    assert triton.cdiv(N, block_n) == Bs.shape[0]
    assert triton.cdiv(K, block_k) == Bs.shape[1]
    C = A.new_empty(A.shape[:-1] + (N,), dtype=output_dtype)
    configs = tuned_configs(N, K)
    if configs:
        config = configs[min(configs.keys(), key=lambda x: abs(x - M))]
    else:
        config = {
            "BLOCK_SIZE_M": 64,
            "BLOCK_SIZE_N": block_size[0],
            "BLOCK_SIZE_K": block_size[1],
            "GROUP_SIZE_M": 32,
            "num_warps": 4,
            "num_stages": 2,
        }

    def grid(META):
        return (triton.cdiv(M, META["BLOCK_SIZE_M"]) * triton.cdiv(N, META["BLOCK_SIZE_N"]),)

    _scaled_product[grid](
        A, B, C, As, Bs,
        M, N, K, block_n, block_k,
        A.stride(-2), A.stride(-1), B.stride(1), B.stride(0), C.stride(-2), C.stride(-1),
        As.stride(-2), As.stride(-1), Bs.stride(1), Bs.stride(0),
        **config,
    )  # fmt: skip
    return C
