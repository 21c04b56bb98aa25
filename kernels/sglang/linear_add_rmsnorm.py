"""The float64 reference of linear_add_rmsnorm, inputs whose sums are near 1, and its peers."""

from functools import cache

EPS = 1.0e-5  # as in search_spaces/sglang/linear_add_rmsnorm.yaml; Llama-3's
# Rows so far apart that only eps counts in one and nothing of it in another.
ROW_SCALES = (2.0**-100, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes):
    """Compute both results in float64; `xp` is NumPy or CuPy."""
    total = inputs["x"] @ inputs["w"].T + inputs["residual"]
    scale = 1.0 / xp.sqrt((total * total).mean(axis=1, keepdims=True) + EPS)
    return {"out": total * scale * inputs["g"], "residual": total}


def inputs(xp, rng, axes, fill):
    """Draw w as models have it, so that sums of K products are about 1 for every K.

    For `extreme` a row of x and of the residual has a scale of its own, and a column of both
    summands one sign: where large numbers cancel, what is left depends on the order of the sum.
    """
    rows, columns, depth = axes["M"], axes["N"], axes["K"]
    w = rng.standard_normal((columns, depth), dtype=xp.float32) * depth**-0.5
    if fill != "extreme":
        return {"w": w}
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)
    choice = (rng.random((rows, 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    scale = scales[xp.minimum(choice, len(ROW_SCALES) - 1)]
    signs = xp.where(rng.random((1, columns), dtype=xp.float32) < 0.5, -1.0, 1.0)
    signs = signs.astype(xp.float32)
    return {
        "x": xp.abs(rng.standard_normal((rows, depth), dtype=xp.float32)) * scale,
        "w": xp.abs(w) * signs.T,
        "residual": xp.abs(rng.standard_normal((rows, columns), dtype=xp.float32)) * scale * signs,
    }


def plain(x, w, residual, g):
    """Write the operator as a model does in PyTorch; the product is rounded to bf16."""
    import torch

    total = torch.mm(x, w.t()).float() + residual.float()
    scale = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + EPS)
    return (total * scale * g.float()).to(x.dtype), total.to(x.dtype)


@cache
def compiled(mode="default"):
    import torch

    return torch.compile(plain, dynamic=False, mode=mode)


def called(function, tensors):
    out, residual = function(*(tensors[name] for name in ("x", "w", "residual", "g")))
    return {"out": out, "residual": residual}


def pytorch(tensors, axes):
    """Call cuBLAS and PyTorch's own operators, eager."""
    return called(plain, tensors)


def torch_compile(tensors, axes):
    """Compile the same: cuBLAS, then one kernel for the rest."""
    return called(compiled(), tensors)


def torch_compile_max(tensors, axes):
    """Compile it with the best product that PyTorch's compiler finds, its own among them."""
    return called(compiled("max-autotune-no-cudagraphs"), tensors)


def flashinfer(tensors, axes):
    """Call cuBLAS, then FlashInfer's CUDA operator."""
    import torch
    from flashinfer import norm

    torch.mm(tensors["x"], tensors["w"].t(), out=tensors["out"])
    module = norm.get_norm_module()
    module.fused_add_rmsnorm(tensors["out"], tensors["residual"], tensors["g"], EPS, True)


def flashinfer_cute(tensors, axes):
    """Call cuBLAS, then FlashInfer's operator in the CuTe DSL, which SGLang calls."""
    import torch
    from flashinfer.norm.kernels import fused_add_rmsnorm_cute

    torch.mm(tensors["x"], tensors["w"].t(), out=tensors["out"])
    arguments = (tensors["out"], tensors["residual"], tensors["g"], EPS)
    fused_add_rmsnorm_cute(*arguments, enable_pdl=True)


def sgl_aot(tensors, axes):
    """Call cuBLAS, then SGLang's prebuilt operator."""
    import torch

    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    torch.mm(tensors["x"], tensors["w"].t(), out=tensors["out"])
    operators.fused_add_rmsnorm.default(
        tensors["out"], tensors["residual"], tensors["g"], EPS, True
    )


production = "flashinfer-cute"
peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "torch.compile-max": torch_compile_max,
    "flashinfer": flashinfer,
    "flashinfer-cute": flashinfer_cute,
    "sgl-aot": sgl_aot,
}
