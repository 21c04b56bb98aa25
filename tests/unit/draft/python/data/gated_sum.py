"""A cumulative sum of gates by chunks, in the style of libraries for linear attention."""

from typing import Optional

import torch
import triton
import triton.language as tl

BS_LIST = [16, 32]


@triton.heuristics({"HAS_SCALE": lambda args: args["scale"] is not None})
@triton.autotune(
    configs=[triton.Config({}, num_warps=num_warps) for num_warps in [1, 2, 4, 8]],
    key=["B", "H", "BT"],
)
@triton.jit(do_not_specialize=["T"])
def chunk_sum_kernel(
    s, o, scale, T,
    B: tl.constexpr, H: tl.constexpr, BT: tl.constexpr, HAS_SCALE: tl.constexpr,
):  # fmt: skip
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    at = i_t * BT + tl.arange(0, BT)
    p_s = s + i_b * T * H + at * H + i_h
    p_o = o + i_b * T * H + at * H + i_h
    b_s = tl.load(p_s, mask=at < T, other=0.0).to(tl.float32)
    b_o = tl.cumsum(b_s, axis=0)
    if HAS_SCALE:
        b_o = b_o * scale
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), mask=at < T)


def chunk_sum(
    g: torch.Tensor,
    chunk_size: int = 64,
    scale: float = 0.5,
    output_dtype: Optional[torch.dtype] = torch.float,
) -> torch.Tensor:
    B, T, H = g.shape
    BT = chunk_size
    NT = triton.cdiv(T, BT)
    o = torch.empty_like(g, dtype=output_dtype or g.dtype)
    grid = (NT, B * H)
    chunk_sum_kernel[grid](s=g, o=o, scale=scale, T=T, B=B, H=H, BT=BT)
    return o
