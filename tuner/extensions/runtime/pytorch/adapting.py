"""From arrays as engines have them to a tuned operator's: what adapters of all plugins share.

A copy of this file is part of every exported plugin.
"""

from __future__ import annotations

from typing import Any

try:
    import torch
except ImportError:  # whoever writes a package needs the tables alone
    torch = None

from tuner.extensions.runtime.pytorch.replacing import ORIGINAL, Tuned

GROUP = 128  # numbers that share a scale
LEAST_SCALE_OF = 1e-10  # what a group's largest number counts as, at least


def activated(tuned: Tuned, x: torch.Tensor, out: torch.Tensor | None = None) -> Any:
    """Activate and multiply rows, of any number of leading dimensions."""
    width = x.shape[-1] // 2
    if out is None:
        out = x.new_empty(*x.shape[:-1], width)
    rows, result = x, out
    if x.dim() != 2:
        if not are_whole(x, out):
            return ORIGINAL
        rows, result = x.view(-1, 2 * width), out.view(-1, width)
    return out if tuned.serves(result, rows) else ORIGINAL


def quantized_by_group(tuned: Tuned, x: torch.Tensor, q: torch.Tensor | None = None) -> Any:
    """Quantize groups of rows to fp8, with scales in the one layout that was tuned for.

    Scales by column are a view of an array whose columns are padded to 16 bytes.
    """
    rows, width = x.shape
    by_column = tuned.choices["SCALES"] == "column"
    padded = -(-rows // 4) * 4
    if q is None:
        q = torch.empty((rows, width), device=x.device, dtype=torch.float8_e4m3fn)
    shape = (width // GROUP, padded) if by_column else (rows, width // GROUP)
    scales = torch.empty(shape, device=x.device, dtype=torch.float32)
    if not tuned.serves(q, scales, x):
        return ORIGINAL
    return q, scales.transpose(0, 1)[:rows] if by_column else scales


def suits_groups(
    tuned: Tuned, x: torch.Tensor, group_size: int, eps: float, by_column: bool, aligned: bool
) -> bool:
    """Say whether `quantized_by_group` gives the layout that is asked for."""
    return (
        (by_column, group_size, eps) == (tuned.choices["SCALES"] == "column", GROUP, LEAST_SCALE_OF)
        and x.dim() == 2
        and x.shape[1] % GROUP == 0
        and (not by_column or aligned or x.shape[0] % 4 == 0)
    )


def dequantized(
    tuned: Tuned, qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor
) -> Any:
    """Dequantize AWQ weights whose groups are 128 rows; of others the scales' shapes differ."""
    shape = (qweight.shape[0], 8 * qweight.shape[1])
    out = torch.empty(shape, device=scales.device, dtype=scales.dtype)
    return out if tuned.serves(out, qweight, scales, qzeros) else ORIGINAL


def are_whole(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether both can be viewed as rows."""
    return bool(first.is_contiguous() and second.is_contiguous())


def invariant_product(
    tuned: Tuned, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    """Multiply rows by weights as deterministic modes do, to which they come transposed."""
    if bias is not None or not b.t().is_contiguous():
        return ORIGINAL
    a = a.contiguous()  # one row of a slice is so anyway: who multiplies may not depend on that
    out = a.new_empty(a.shape[0], b.shape[1])
    return out if tuned.serves(out, a, b.t()) else ORIGINAL


def call_invariant_product(original: Any, out: Any, x: Any, w: Any) -> None:
    out.copy_(original(x, w.t()))
