"""The float64 reference of moe_sum_reduce, inputs that a float can add up, and peers."""

from functools import cache

MOST_COMPILED = 32  # tokens
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


def sgl_aot(tensors, axes):
    """SGLang's prebuilt operator."""
    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    operators.moe_sum_reduce.default(tensors["x"], tensors["y"], SCALE)


def triton(tensors, axes):
    """SGLang's Triton kernel, which it calls on GPUs of other makers."""
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import moe_sum_reduce_triton

    moe_sum_reduce_triton(tensors["x"], tensors["y"], SCALE)


@cache
def compiled():
    """Compile the operator as one would write it in PyTorch."""
    import torch

    return torch.compile(lambda x: (x.float().sum(dim=1) * SCALE).to(x.dtype), dynamic=False)


def torch_compile(tensors, axes):
    """What PyTorch's compiler makes of it."""
    return {"y": compiled()(tensors["x"])}


@cache
def compiled_in_place():
    import torch

    return torch.compile(lambda x, y: torch.sum(x, dim=1, out=y).mul_(SCALE), dynamic=False)


def torch_compile_in_place(tensors, axes):
    """What it makes of the operator as SGLang writes it for up to `MOST_COMPILED` tokens."""
    compiled_in_place()(tensors["x"], tensors["y"])


def production(axes):
    return "torch.compile-out" if axes["T"] <= MOST_COMPILED else "sgl-aot"


peers = {
    "sgl-aot": sgl_aot,
    "triton": triton,
    "torch.compile": torch_compile,
    "torch.compile-out": torch_compile_in_place,
}
