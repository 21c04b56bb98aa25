"""moe_align_block_size: the routes of an MoE layer, sorted by expert and padded, and its inputs."""

from functools import cache


def tiles_in_all(routes, experts, tile):
    """Give the tiles that suffice for any routing, which is what the outputs have room for."""
    return min(routes, -(-(routes + experts * (tile - 1)) // tile))


def reference(xp, inputs, axes):
    """Sort by expert and, within one, by route; `xp` is NumPy or CuPy."""
    ids = inputs["topk_ids"].reshape(-1).astype(xp.int64)
    routes, experts, tile = ids.size, axes["E"], axes["B"]
    tiles = tiles_in_all(routes, experts, tile)

    counts = xp.bincount(ids, minlength=experts)
    ends = xp.cumsum((counts + tile - 1) // tile)  # of each expert, in tiles
    starts = (xp.concatenate([xp.zeros_like(ends[:1]), ends[:-1]])) * tile
    order = xp.argsort(ids * routes + xp.arange(routes))  # no two keys are equal
    rank = xp.arange(routes) - (xp.cumsum(counts) - counts)[ids[order]]
    sorted_ids = xp.full(tiles * tile, routes)
    sorted_ids[starts[ids[order]] + rank] = order

    place = xp.arange(tiles)
    expert_ids = xp.where(place < ends[-1], xp.searchsorted(ends, place, side="right"), -1)
    return {
        "sorted_ids": sorted_ids,
        "expert_ids": expert_ids,
        "num_tokens_post_pad": ends[-1:] * tile,
    }


def canonical(xp, outputs, axes):
    """Sort the routes of each expert, whose order is free; what is no route stays wrong."""
    routes = axes["T"] * axes["k"]
    experts = xp.repeat(outputs["expert_ids"], axes["B"])
    changes = xp.concatenate([xp.zeros_like(experts[:1], dtype=bool), experts[1:] != experts[:-1]])
    values = xp.clip(outputs["sorted_ids"].astype(xp.int64), -1, routes + 1) + 1
    keys = xp.cumsum(changes) * (routes + 3) + values
    return {"sorted_ids": (xp.sort(keys) % (routes + 3) - 1).astype(xp.int32)}


def inputs(xp, rng, axes, fill):
    """Draw the experts of each token: distinct ones, as a top-k gives, in all fills but one."""
    tokens, experts, k = axes["T"], axes["E"], axes["k"]
    noise = rng.random((tokens, experts), dtype=xp.float32)
    every = xp.arange(experts)
    if fill == "x3":  # a few experts get most of the routes
        noise = noise**1.5 ** (every % 13)
    elif fill == "x0.01":  # all the same number, within one
        turn = xp.arange(tokens * k).reshape(tokens, k) + int(float(rng.random(1)[0]) * experts)
        return {"topk_ids": turn % experts}
    elif fill == "negated":  # as few experts as can be, the last ones
        noise = noise - (every >= experts - k)
    elif fill == "zeros":  # a half without any
        noise = noise - (every % 2)
    elif fill == "extreme":  # the first and the last expert over and over
        ends = rng.random((tokens, k), dtype=xp.float32) < 0.5
        return {"topk_ids": xp.where(ends, 0, experts - 1)}
    return {"topk_ids": xp.argsort(noise, axis=1)[:, :k]}


def unread(xp, outputs, axes):
    """Forget the experts of tiles that nobody has: their number tells where to stop reading."""
    tiles = xp.arange(len(outputs["expert_ids"]))
    beyond = tiles * axes["B"] >= outputs["num_tokens_post_pad"]
    return {"expert_ids": xp.where(beyond, -1, outputs["expert_ids"]).astype(xp.int32)}


def plain(ids, places, experts, tile):
    """Write the operator in PyTorch."""
    import torch

    ids = ids.view(-1)
    routes = ids.numel()
    of_routes, order = torch.sort(ids, stable=True)
    of_routes = of_routes.long()
    every = torch.arange(experts, device=ids.device)
    behind = torch.searchsorted(of_routes, every, right=True)
    counts = torch.diff(behind, prepend=behind.new_zeros(1))
    padded = (counts + tile - 1) // tile * tile
    ends = padded.cumsum(0)
    shift = ends - padded - (behind - counts)
    sorted_ids = torch.full((places,), routes, dtype=torch.int32, device=ids.device)
    at = torch.arange(routes, device=ids.device) + shift[of_routes]
    sorted_ids.scatter_(0, at, order.int())
    starts = torch.arange(0, places, tile, device=ids.device)
    expert_ids = torch.searchsorted(ends, starts, right=True).int()
    return {
        "sorted_ids": sorted_ids,
        "expert_ids": expert_ids.masked_fill_(starts >= ends[-1], -1),
        "num_tokens_post_pad": ends[-1:].int(),
    }


def pytorch(tensors, axes):
    """PyTorch's operators, eager."""
    return plain(tensors["topk_ids"], tensors["sorted_ids"].numel(), axes["E"], axes["B"])


@cache
def compiled_plain():
    import torch

    return torch.compile(plain, dynamic=False)


def torch_compile(tensors, axes):
    """The same, compiled."""
    places = tensors["sorted_ids"].numel()
    return compiled_plain()(tensors["topk_ids"], places, axes["E"], axes["B"])


def sgl_arguments(tensors, axes):
    """List what both of SGLang's operators take: one expert more than there are, for -1."""
    import torch

    ids, experts = tensors["topk_ids"], axes["E"]
    scratch = torch.empty(experts + 2, dtype=torch.int32, device=ids.device)
    outputs = (tensors[name] for name in ("sorted_ids", "expert_ids", "num_tokens_post_pad"))
    return (ids, experts + 1, axes["B"], *outputs, scratch, True)  # padded by the operator


def sgl_aot(tensors, axes):
    """SGLang's prebuilt operator, all experts valid."""
    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    operators.moe_align_block_size.default(*sgl_arguments(tensors, axes), False)


def sgl_jit(tensors, axes):
    """SGLang's operator that is compiled when it is first called."""
    from sglang.kernels.ops.moe.moe_align import moe_align_block_size

    moe_align_block_size(*sgl_arguments(tensors, axes))


production = "sgl-aot"
peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "sgl-aot": sgl_aot,
    "sgl-jit": sgl_jit,
}
