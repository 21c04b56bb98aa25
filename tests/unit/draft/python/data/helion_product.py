"""A matrix product of Helion, with the config that its autotuner once printed."""

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
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"sizes do not fit: {k} and {k2}"
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def check():
    x = torch.randn([512, 1024], device="cuda", dtype=torch.bfloat16)
    y = torch.randn([1024, 256], device="cuda", dtype=torch.bfloat16)
    return product(x, y)
