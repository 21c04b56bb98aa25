"""The float64 reference of fused_add_rmsnorm, inputs for its edges, and its peers."""

from functools import cache

EPS = 1.0e-6  # as in search_spaces/sglang/fused_add_rmsnorm.yaml
# Rows so far apart that only eps counts in one and nothing of it in another.
ROW_SCALES = (2.0**-100, 2.0**-10, 1.0, 2.0**50)
# Of the fill `extreme`: rows, and elements of the others, whose sum is zero.
CANCELLED = 0.125


def reference(xp, inputs, axes, GEMMA="false", ROUNDED="false"):
    """Add, round and normalize by rows in float64; `xp` is NumPy or CuPy.

    The sum of two bf16 in fp32 rounds to the same bf16 as the exact one: it is inexact only where
    one is below 2^-16 of the other, and then far from the middle between two bf16.
    """
    w = inputs["w"]
    total = inputs["x"] + inputs["residual"]
    residual = bfloat16(xp, total)
    scale = 1.0 / xp.sqrt((total * total).mean(axis=1, keepdims=True) + EPS)
    weights = 1.0 + w if GEMMA == "true" else w
    return {
        "x": (residual if ROUNDED == "true" else total) * scale * weights,
        "residual": residual,
    }


def bfloat16(xp, values):
    """Round float64 to 8 significant bits, to nearest even; a sum below 2^-126 has no more."""
    dropped = 52 - 7
    bits = values.view(xp.int64)
    odd = (bits >> dropped) & 1
    rounded = ((bits + ((1 << (dropped - 1)) - 1) + odd) >> dropped) << dropped
    return xp.where(xp.isfinite(values), rounded.view(xp.float64), values)


def inputs(xp, rng, axes, fill):
    """Draw x and residual for the fill `extreme`: no float holds the squares of the largest bf16.

    They differ in size by rows, and cancel out here and there.
    """
    if fill != "extreme":
        return {}
    shape = (axes["T"], axes["H"])
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)

    def drawn():
        choice = (rng.random((axes["T"], 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
        values = rng.standard_normal(shape, dtype=xp.float32)
        return values * scales[xp.minimum(choice, len(ROW_SCALES) - 1)]

    x, residual = drawn(), drawn()
    cancelled = rng.random(shape, dtype=xp.float32) < CANCELLED
    cancelled |= rng.random((axes["T"], 1), dtype=xp.float32) < CANCELLED
    return {"x": x, "residual": xp.where(cancelled, -x, residual)}


def normalized(x, residual, w, bias, rounded):
    """Compute both results in fp32 PyTorch, as SGLang's fallback does."""
    import torch

    total = x.float() + residual.float()
    stored = total.to(x.dtype)
    scale = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + EPS)
    values = stored.float() if rounded else total
    return (values * scale * (bias + w.float())).to(x.dtype), stored


@cache
def compiled():
    import torch

    def in_place(x, residual, w, bias, rounded):
        result, stored = normalized(x, residual, w, bias, rounded)
        residual.copy_(stored)
        x.copy_(result)

    return torch.compile(in_place, dynamic=False)


def pytorch(tensors, axes, GEMMA="false", ROUNDED="false"):
    """Plain PyTorch, eager."""
    x, residual = tensors["x"], tensors["residual"]
    bias = 1.0 if GEMMA == "true" else 0.0
    result, stored = normalized(x, residual, tensors["w"], bias, ROUNDED == "true")
    residual.copy_(stored)
    x.copy_(result)


def torch_compile(tensors, axes, GEMMA="false", ROUNDED="false"):
    """The same, compiled."""
    bias = 1.0 if GEMMA == "true" else 0.0
    compiled()(tensors["x"], tensors["residual"], tensors["w"], bias, ROUNDED == "true")


def require_unrounded(ROUNDED):
    if ROUNDED == "true":
        raise NotImplementedError("it normalizes the sum before it is rounded")


def flashinfer(tensors, axes, GEMMA="false", ROUNDED="false"):
    """FlashInfer's CUDA operator; with its CuTe DSL installed, `flashinfer.norm` has another."""
    from flashinfer import norm

    require_unrounded(ROUNDED)
    module = norm.get_norm_module()
    operator = module.gemma_fused_add_rmsnorm if GEMMA == "true" else module.fused_add_rmsnorm
    operator(tensors["x"], tensors["residual"], tensors["w"], EPS, True)


def flashinfer_cute(tensors, axes, GEMMA="false", ROUNDED="false"):
    """FlashInfer's operator in the CuTe DSL, which SGLang calls."""
    require_unrounded(ROUNDED)
    from flashinfer.norm.kernels import fused_add_rmsnorm_cute

    bias = 1.0 if GEMMA == "true" else 0.0
    arguments = (tensors["x"], tensors["residual"], tensors["w"])
    fused_add_rmsnorm_cute(*arguments, EPS, weight_bias=bias, enable_pdl=True)


def sgl_aot(tensors, axes, GEMMA="false", ROUNDED="false"):
    """SGLang's prebuilt operator, which its Python calls only where FlashInfer is missing."""
    from tuner.device.reference import torch_operators

    require_unrounded(ROUNDED)
    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    operator = operators.gemma_fused_add_rmsnorm if GEMMA == "true" else operators.fused_add_rmsnorm
    operator.default(tensors["x"], tensors["residual"], tensors["w"], EPS, True)


def sgl_jit(tensors, axes, GEMMA="false", ROUNDED="false"):
    """SGLang's operator that is compiled when it is first called; it has no programmatic launch."""
    from sglang.kernels.ops.layernorm import norm

    if GEMMA == "true":
        raise NotImplementedError("no such operator with weights 1 + w")
    if not norm.is_supported_jit_fused_add_rmsnorm_hidden_size(axes["H"]):
        raise NotImplementedError(f"no such operator for width {axes['H']}")
    # What it multiplies is rounded, what it takes the mean of is not: as with ROUNDED=true.
    norm.fused_add_rmsnorm(tensors["x"], tensors["residual"], tensors["w"], EPS)


def production(axes, GEMMA="false", ROUNDED="false"):
    return "flashinfer-cute" if ROUNDED == "false" else None


peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "flashinfer": flashinfer,
    "flashinfer-cute": flashinfer_cute,
    "sgl-aot": sgl_aot,
    "sgl-jit": sgl_jit,
}
