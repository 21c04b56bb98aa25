"""How worn a stair is after each of its steps, landing by landing, in float32."""

from typing import Optional

import torch
import triton
import triton.language as tl

LANDINGS = [16, 32]


@triton.heuristics({"HAS_POLISH": lambda args: args["polish"] is not None})
@triton.autotune(
    configs=[triton.Config({}, num_warps=warps) for warps in [1, 2, 4, 8]],
    key=["HOUSES", "STAIRS", "BS"],
)
@triton.jit(do_not_specialize=["height"])
def worn_steps_kernel(
    treads, worn, polish, height,
    HOUSES: tl.constexpr, STAIRS: tl.constexpr, BS: tl.constexpr, HAS_POLISH: tl.constexpr,
):  # fmt: skip
    landing, stair = tl.program_id(0), tl.program_id(1)
    ground = (stair // STAIRS) * height * STAIRS + stair % STAIRS
    step = landing * BS + tl.arange(0, BS)
    tread = tl.load(treads + ground + step * STAIRS, mask=step < height, other=0.0)
    hollow = tl.cumsum(tl.abs(tread.to(tl.float32)), axis=0)
    if HAS_POLISH:
        hollow = hollow / (polish + hollow)
    tl.store(worn + ground + step * STAIRS, hollow, mask=step < height)


def worn_steps(
    treads: torch.Tensor,
    steps: int = 64,
    polish: float = 0.5,
    kept_as: Optional[torch.dtype] = torch.float,
) -> torch.Tensor:
    HOUSES, height, STAIRS = treads.shape
    BS = steps
    landings = triton.cdiv(height, BS)
    worn = torch.empty_like(treads, dtype=kept_as or treads.dtype)
    walk = (landings, HOUSES * STAIRS)
    worn_steps_kernel[walk](
        treads=treads, worn=worn, polish=polish, height=height, HOUSES=HOUSES, STAIRS=STAIRS, BS=BS
    )
    return worn
