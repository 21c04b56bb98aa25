"""SGLang's Triton kernel of an MoE layer's two GEMMs, as installed: launcher, inputs, reference.

The layer has E experts on this GPU: `gate_up` multiplies each token by the 2 N rows of each of its
TOP_K experts, `down` their N activated columns back to K, times the router's weight.
"""

from functools import cache
from types import SimpleNamespace

BLOCK = 128  # of K, and of columns, under a scale
NEEDED = (
    "pip install 'torch==2.11.0' 'triton==3.6.0' 'sglang==0.5.17' 'sglang-kernel==0.4.5'"
    " (docs/peers.md)"
)
# What one GEMM's config has, in SGLang's own spelling.
KEYS = (
    "BLOCK_SIZE_M",
    "BLOCK_SIZE_N",
    "BLOCK_SIZE_K",
    "GROUP_SIZE_M",
    "num_warps",
    "num_stages",
)
# How much likelier the most popular expert is than the least, as a logarithm. With 4.5, and
# popularities that are even on that scale, 1,024 tokens choose among 128 experts as Qwen3-30B-A3B's
# were counted to on mixed prose, code and mathematics: 64 experts have 90 % of the routes (counted:
# 65), 1 - entropy / log(128) is 0.11 (0.11), the first expert has 3.3 % (4.3 %). The counts are in
# https://mcp-tool-shop-org.github.io/gpu-container/handbook/derisk/
REAL_SPREAD = 4.5
# Routings that are drawn for one, and values of BLOCK_SIZE_M: how full blocks are counts too.
DRAWS, ROWS = 16, (16, 64, 128)
# Routings for what is usual, and tokens of all together: those of few tokens vary most.
LEAST_OF, MOST_OF, TOKENS_OF = 16, 256, 4096
# Weights that are drawn one by one, unless an expert has more.
DRAWN = 1 << 25
# Of the rows of x and h in `extreme`: their sums stay between the smallest and the largest floats.
ROW_SCALES = (2.0**-60, 2.0**-10, 1.0, 2.0**50)


@cache
def engine():
    """Import what is needed of SGLang, once a process."""
    try:
        import torch
        import triton.language as tl
        from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel
        from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config import (
            get_default_config,
            try_get_optimal_moe_config,
        )
        from sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size import (
            moe_align_block_size,
        )
        from sglang.srt.runtime_context import get_exec, publish
        from sglang.srt.server_args import ServerArgs
    except ImportError as error:
        reason = f"SGLang's fused MoE kernel cannot be imported: {error}; {NEEDED}"
        raise ImportError(reason) from error
    try:
        get_exec()
    except ValueError:  # its choice of a config asks the server's arguments, and there is no server
        publish(ServerArgs(model_path="dummy"), role="test")
    return SimpleNamespace(
        torch=torch,
        bfloat16=tl.bfloat16,
        invoke=invoke_fused_moe_kernel,
        align=moe_align_block_size,
        choose=try_get_optimal_moe_config,
        guess=get_default_config,
    )


def configs_of(config, axes, WEIGHTS):
    """Give the configs of gate_up and of down; for None those that SGLang would load or guess.

    BLOCK_SIZE_M is that of both: they share one sorting of the routes, and SGLang overrides what
    its `_down` file says of it.
    """
    if config is not None:
        first = {key: config[key] for key in KEYS}
        second = {key: config.get(f"down_{key}", config[key]) for key in KEYS}
        return first, second
    experts, width, depth = axes["E"], axes["N"], axes["K"]
    fp8 = WEIGHTS == "fp8_block"
    first, (second, _) = engine().choose(
        (experts, 2 * width, depth),
        (experts, depth, width),
        axes["TOP_K"],
        "fp8_w8a8" if fp8 else None,
        axes["M"],
        block_shape=[BLOCK, BLOCK] if fp8 else None,
        return_down_config=True,
    )
    second = dict(second or first)
    # Only files for down have it. It needs h in the order of the sorted routes, which gate_up and
    # the activation then have to write.
    if second.pop("USE_TMA", False):
        raise NotImplementedError("SGLang's file for down asks for USE_TMA, which is not run here")
    return dict(first), second


def launch(config, tensors, axes, PART="both", WEIGHTS="bf16", ROUTING="balanced", CONFIGS="one"):
    """Enqueue the sorting of the routes and the GEMMs of PART; `config` None is SGLang's choice.

    h is an input, so that a GEMM's errors are its own: the activation between the GEMMs is another
    kernel, which no config here changes. So is the quantization of x and h.
    """
    enqueue(configs_of(config, axes, WEIGHTS), tensors, axes, PART, WEIGHTS)


def enqueue(configs, tensors, axes, PART, WEIGHTS):
    """Enqueue the sorting and the GEMMs of PART with the configs of gate_up and of down."""
    sglang, (first, second) = engine(), configs
    # Each step of a model pays for the sorting as well, once for both GEMMs of a layer, and what it
    # costs and how much it pads depend on BLOCK_SIZE_M. A part alone is charged for all of it.
    routes = sglang.align(tensors["topk_ids"], first["BLOCK_SIZE_M"], axes["E"])
    gate_up, down = results(tensors["out"], axes, PART)
    if PART != "down":
        multiply(sglang, tensors, ("x", "w1"), gate_up, routes, axes, first, WEIGHTS)
    if PART != "gate_up":
        multiply(sglang, tensors, ("h", "w2"), down, routes, axes, second, WEIGHTS)


def results(out, axes, PART):
    """Give the part of `out` for each GEMM: a row for each route, gate_up's rows first."""
    routes, width, depth = axes["M"] * axes["TOP_K"], axes["N"], axes["K"]
    first = routes * 2 * width if PART != "down" else 0
    return out[:first].view(-1, 2 * width), out[first:].view(-1, depth)


def multiply(sglang, tensors, names, out, routes, axes, config, WEIGHTS):
    """Enqueue one GEMM as SGLang's layer does."""
    rows, weights = names
    fp8, down = WEIGHTS == "fp8_block", rows == "h"
    sglang.invoke(
        tensors[rows],
        tensors[weights],
        None,  # bias
        out,
        tensors[f"{rows}_scale"] if fp8 else None,
        tensors[f"{weights}_scale"] if fp8 else None,
        None,  # zero points
        tensors["topk_weights"],
        tensors["topk_ids"],
        *routes,
        down,  # multiply by the router's weights
        1 if down else axes["TOP_K"],  # rows of out that share a row of x
        config,
        compute_type=sglang.bfloat16,
        use_fp8_w8a8=fp8,
        use_int8_w8a8=False,
        use_int8_w8a16=False,
        use_int4_w4a16=False,
        per_channel_quant=False,
        block_shape=[BLOCK, BLOCK] if fp8 else None,
        filter_expert=axes["EP"] > 1,
    )


def reference(xp, inputs, axes, PART="both", WEIGHTS="bf16", ROUTING="balanced", CONFIGS="one"):
    """Compute both GEMMs in float64, expert by expert; `xp` is NumPy or CuPy."""
    ids = inputs["topk_ids"].reshape(-1).astype(xp.int64)
    fp8 = WEIGHTS == "fp8_block"
    parts = []
    if PART != "down":
        rows = xp.arange(ids.size) // axes["TOP_K"]
        parts.append(products(xp, inputs, ("x", "w1"), ids, rows, fp8))
    if PART != "gate_up":
        down = products(xp, inputs, ("h", "w2"), ids, xp.arange(ids.size), fp8)
        parts.append(down * inputs["topk_weights"].reshape(-1, 1))
    return {"out": xp.concatenate([part.reshape(-1) for part in parts])}


def products(xp, inputs, names, ids, rows, fp8):
    """Multiply the row of each route by its expert's weights; zeros for an expert elsewhere."""
    x, w = (inputs[name] for name in names)
    if fp8:
        x = x * xp.repeat(inputs[f"{names[0]}_scale"], BLOCK, axis=1)[:, : x.shape[1]]
    out = xp.zeros((ids.size, w.shape[1]))
    for expert in range(len(w)):
        of_expert = xp.nonzero(ids == expert)[0]
        if of_expert.size:
            weights = w[expert]
            if fp8:
                scale = inputs[f"{names[1]}_scale"][expert]
                scale = xp.repeat(xp.repeat(scale, BLOCK, axis=0), BLOCK, axis=1)
                weights = weights * scale[: w.shape[1], : w.shape[2]]
            out[of_expert] = x[rows[of_expert]] @ weights.T
    return out


def inputs(xp, rng, axes, fill, PART="both", WEIGHTS="bf16", ROUTING="balanced", CONFIGS="one"):
    """Draw routes, and weights whose sums are near 1 for every K.

    For `extreme` a row of x or h has one sign and a scale of its own, and an expert's row one sign:
    where large numbers cancel, what is left depends on the order of the sum.
    """
    drawn = {"topk_ids": routes_of(xp, rng, axes, fill, ROUTING)}
    experts, width, depth = axes["E"], axes["N"], axes["K"]
    if PART != "down":
        shapes = (axes["M"], depth), (experts, 2 * width, depth)
        drawn |= drawn_for(xp, rng, ("x", "w1"), shapes, fill, WEIGHTS)
    if PART != "gate_up":
        shapes = (axes["M"] * axes["TOP_K"], width), (experts, depth, width)
        drawn |= drawn_for(xp, rng, ("h", "w2"), shapes, fill, WEIGHTS)
    return drawn


def drawn_for(xp, rng, names, shapes, fill, WEIGHTS):
    """Draw one GEMM's weights or their scales; rows and their scales too for `extreme`."""
    (rows, depth), (experts, columns, _) = shapes
    blocks = -(-depth // BLOCK)
    drawn, least = {}, xp.float32(depth**-0.5)
    if WEIGHTS == "fp8_block":
        scales = (experts, -(-columns // BLOCK), blocks)
        drawn[f"{names[1]}_scale"] = (0.5 + rng.random(scales, dtype=xp.float32)) * least
    else:
        drawn[names[1]] = weights_of(xp, rng, shapes[1]) * least
    if fill != "extreme":
        return drawn
    choice = (rng.random((rows, 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    of_rows = xp.asarray(ROW_SCALES, dtype=xp.float32)[xp.minimum(choice, len(ROW_SCALES) - 1)]
    x = xp.abs(rng.standard_normal(shapes[0], dtype=xp.float32))
    signs = xp.where(rng.random((experts, columns, 1), dtype=xp.float32) < 0.5, -1.0, 1.0)
    signs = signs.astype(xp.float32)
    if WEIGHTS == "bf16":
        return {names[0]: x * of_rows, names[1]: xp.abs(drawn[names[1]]) * signs}
    w = xp.minimum(xp.abs(rng.standard_normal(shapes[1], dtype=xp.float32)) * 150, 448)
    return drawn | {
        names[0]: xp.minimum(x * 150, 448),
        names[1]: w * signs,
        f"{names[0]}_scale": of_rows * xp.ones((rows, blocks), dtype=xp.float32),
    }


def weights_of(xp, rng, shape):
    """Draw normal weights; each row of an expert is one of so many that are drawn anew.

    A GPU takes seconds to draw the 604 million of a layer, and a moment to copy rows.
    """
    experts, columns, depth = shape
    rows = min(experts * columns, max(columns, DRAWN // depth))
    drawn = rng.standard_normal((rows, depth), dtype=xp.float32)
    order = (rng.random(experts * columns) * rows).astype(xp.int64)
    return drawn[order].reshape(shape)


def routes_of(xp, rng, axes, fill, ROUTING):
    """Draw each token's TOP_K distinct experts of E * EP; those on other GPUs are -1, as SGLang's.

    `balanced`: all are as likely, as with the random gate of SGLang's tuning script. `skewed`: the
    n-th by popularity is 1 / n as likely as the first. `real`: see `REAL_SPREAD`. Of `DRAWS` such
    routings it is the one that is the most usual: how many experts few tokens choose, or how many
    of them are here, varies by 7 to 40 %, and with it what the kernel takes.
    """
    every = axes["E"] * axes["EP"]
    tokens, k = axes["M"], axes["TOP_K"]
    if fill == "zeros":  # all tokens want the same
        ids = xp.arange(tokens * k).reshape(tokens, k) % k
    elif fill == "x0.01":  # all experts get the same number, within one
        ids = (xp.arange(tokens * k).reshape(tokens, k) + int(rng.random(1)[0] * every)) % every
    else:
        sizes = tokens, axes["E"], every, k
        usual = usual_blocks(xp, sizes, ROUTING)
        drawn = [chosen_routes(xp, rng, sizes, ROUTING) for _ in range(DRAWS)]
        return min(drawn, key=lambda ids: unusual(blocks_of(xp, ids, axes["E"]), usual))
    return routes_here(xp, ids, axes["E"], every)


@cache
def usual_blocks(xp, sizes, ROUTING):
    """Tell how many blocks of each size routes take: means over routings that are always the same.

    NumPy and CuPy draw others, so that the CPU's are not the GPU's.
    """
    rng, count = xp.random.default_rng(0), max(LEAST_OF, min(MOST_OF, TOKENS_OF // sizes[0]))
    routings = (chosen_routes(xp, rng, sizes, ROUTING) for _ in range(count))
    counts = zip(*(blocks_of(xp, one, sizes[1]) for one in routings), strict=True)
    return tuple(sum(of_size) / count for of_size in counts)


def unusual(blocks, usual):
    """Say how far numbers of blocks are from what is usual, as a sum of squared shares."""
    return sum((count / mean - 1.0) ** 2 for count, mean in zip(blocks, usual, strict=True))


def chosen_routes(xp, rng, sizes, ROUTING):
    """Draw the routes of each token by how popular experts are."""
    tokens, experts, every, k = sizes
    # The first of exponential clocks to ring, each as fast as its expert is popular.
    clocks = -xp.log1p(-rng.random((tokens, every)))
    ids = xp.argsort(clocks / popularity(xp, rng, every, ROUTING), axis=1)[:, :k]
    return routes_here(xp, ids, experts, every)


def routes_here(xp, ids, experts, every):
    """Make -1 of the experts of other GPUs.

    This GPU is the one with the first token's first expert: it has a route to be verified by.
    """
    ids = (ids - ids[0, 0] // experts * experts) % every
    return xp.where(ids < experts, ids, -1)


def blocks_of(xp, ids, experts):
    """Count the blocks that go to one expert each here, for every number of routes in a block.

    Of few tokens that is the number of experts, whose weights are read.
    """
    counts = xp.bincount(ids[ids >= 0].ravel(), minlength=experts)
    return [int((-(-counts // rows)).sum()) for rows in ROWS]


def popularity(xp, rng, experts, ROUTING):
    """Draw how likely each expert is to be chosen, in no unit."""
    places = rng.random(experts)
    if ROUTING == "skewed":
        return 1.0 / (1.0 + xp.argsort(places))
    return xp.exp(REAL_SPREAD * places) if ROUTING == "real" else xp.ones(experts)


def pytorch(tensors, axes, PART="both", WEIGHTS="bf16", ROUTING="balanced", CONFIGS="one"):
    """PyTorch's grouped product, with the sorting and gathering of rows that it needs."""
    import torch

    if WEIGHTS != "bf16" or axes["EP"] > 1:
        raise NotImplementedError("compared for bf16 and for experts of one GPU only")
    ids = tensors["topk_ids"].view(-1)
    sorted_ids, order = torch.sort(ids, stable=True)
    every = torch.arange(axes["E"], dtype=ids.dtype, device=ids.device)
    ends = torch.searchsorted(sorted_ids, every, right=True).int()
    gate_up, down = results(tensors["out"], axes, PART)
    if PART != "down":
        rows = tensors["x"][order // axes["TOP_K"]]
        product = torch._grouped_mm(rows, tensors["w1"].transpose(-2, -1), offs=ends)
        gate_up.index_copy_(0, order, product)
    if PART != "gate_up":
        product = torch._grouped_mm(tensors["h"][order], tensors["w2"].transpose(-2, -1), offs=ends)
        product = product * tensors["topk_weights"].view(-1)[order].unsqueeze(1)
        down.index_copy_(0, order, product.to(down.dtype))


def without_file(tensors, axes, PART="both", WEIGHTS="bf16", ROUTING="balanced", CONFIGS="one"):
    """SGLang's kernel with the config that it guesses where it finds no file for a shape."""
    fp8 = WEIGHTS == "fp8_block"
    sizes = (axes[name] for name in ("M", "E", "N", "K", "TOP_K"))
    block = [BLOCK, BLOCK] if fp8 else None
    config = engine().guess(*sizes, "fp8_w8a8" if fp8 else None, False, block)
    enqueue((dict(config), dict(config)), tensors, axes, PART, WEIGHTS)


# What production runs is the baseline: `launch` without a config.
peers = {"pytorch": pytorch, "without_file": without_file}
