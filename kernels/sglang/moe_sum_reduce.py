"""The float64 reference of moe_sum_reduce, inputs that a float can add up, and peers."""

from functools import cache

SCALE = 2.5  # as in search_spaces/sglang/moe_sum_reduce.yaml; DeepSeek-V3's
# Of the columns of `extreme`: denormals, and sums that are infinite once they are scaled.
COLUMN_SCALES = (2.0**-130, 2.0**-60, -1.0, 2.0**60, -(2.0**125))


def reference(xp, inputs, axes):
    """Compute `scale * x.sum(axis=1)` in float64; `xp` is NumPy or CuPy."""
    return {"y": SCALE * inputs["x"].sum(axis=1)}


def inputs(xp, rng, axes, fill):
    """Draw x for the fill `extreme`: of one sign in each column of a token.

    Where large numbers cancel, what is left depends on the order, and may be infinite on the way.
    """
    if fill != "extreme":
        return {}
    tokens, experts, width = axes["T"], axes["K"], axes["H"]
    x = xp.abs(rng.standard_normal((tokens, experts, width), dtype=xp.float32))
    scales = xp.asarray(COLUMN_SCALES, dtype=xp.float32)
    drawn = rng.random((tokens, 1, width), dtype=xp.float32) * len(COLUMN_SCALES)
    return {"x": x * scales[xp.minimum(drawn.astype(xp.int32), len(COLUMN_SCALES) - 1)]}


def sgl_kernel(tensors, axes):
    """SGLang's prebuilt operator."""
    import sgl_kernel

    sgl_kernel.moe_sum_reduce(tensors["x"], tensors["y"], SCALE)


@cache
def compiled():
    """Compile the operator as one would write it in PyTorch."""
    import torch

    return torch.compile(lambda x: (x.float().sum(dim=1) * SCALE).to(x.dtype), dynamic=False)


def torch_compile(tensors, axes):
    """What PyTorch's compiler makes of it."""
    return {"y": compiled()(tensors["x"])}


peers = {"sgl-kernel": sgl_kernel, "torch.compile": torch_compile}
