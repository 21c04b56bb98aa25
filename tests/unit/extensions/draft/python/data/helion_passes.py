"""The highest pass between two valleys over all ridges, in Helion, with a config that its autotuner once printed."""

import torch

import helion
import helion.language as hl


@helion.kernel(
    config=helion.Config(
        block_sizes=[64, 32, 16],
        loop_orders=[[1, 0]],
        l2_groupings=[4],
        indexing="pointer",
        num_warps=4,
    ),
    static_shapes=True,
)
def passes(climbs: torch.Tensor, falls: torch.Tensor) -> torch.Tensor:
    valleys, ridges = climbs.size()
    ridges_behind, coasts = falls.size()
    assert ridges == ridges_behind, f"{ridges} ridges to climb and {ridges_behind} to descend"
    heights = torch.empty([valleys, coasts], dtype=climbs.dtype, device=climbs.device)
    for valley, coast in hl.tile([valleys, coasts]):
        highest = hl.full([valley, coast], float("-inf"), dtype=torch.float32)
        for ridge in hl.tile(ridges):
            up, down = climbs[valley, ridge], falls[ridge, coast]
            way = torch.minimum(up[:, :, None], down[None, :, :]).to(torch.float32)
            highest = torch.maximum(highest, way.amax(dim=1))
        heights[valley, coast] = highest.to(climbs.dtype)
    return heights


def walk():
    climbs = torch.rand([512, 1024], device="cuda", dtype=torch.bfloat16)
    falls = torch.rand([1024, 256], device="cuda", dtype=torch.bfloat16)
    return passes(climbs, falls)
