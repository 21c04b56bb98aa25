"""The float64 reference of gate_up_silu, weights whose sums are near 1, and its peers."""

from functools import cache

# Of the rows of x in `extreme`: products of two sums stay between the smallest and largest floats.
ROW_SCALES = (2.0**-50, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes):
    """Compute `silu(x @ gate.T) * (x @ up.T)` in float64; `xp` is NumPy or CuPy."""
    sums = inputs["x"] @ inputs["w"].T
    gate, up = sums[:, : axes["D"]], sums[:, axes["D"] :]
    return {"out": gate / (1.0 + xp.exp(-gate)) * up}


def inputs(xp, rng, axes, fill):
    """Draw w as models have it, so that sums of K products are about 1 for every K.

    For `extreme` a row of x has one sign and a scale of its own, and a row of w one sign: where
    large numbers cancel, what is left depends on the order of the sum.
    """
    rows, depth = 2 * axes["D"], axes["K"]
    w = rng.standard_normal((rows, depth), dtype=xp.float32) * depth**-0.5
    if fill != "extreme":
        return {"w": w}
    x = xp.abs(rng.standard_normal((axes["M"], depth), dtype=xp.float32))
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)
    choice = (rng.random((axes["M"], 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    signs = xp.where(rng.random((rows, 1), dtype=xp.float32) < 0.5, -1.0, 1.0).astype(xp.float32)
    return {"x": x * scales[xp.minimum(choice, len(ROW_SCALES) - 1)], "w": xp.abs(w) * signs}


def plain(x, w):
    import torch

    gate, up = torch.mm(x, w.t()).chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


@cache
def compiled(mode="default"):
    import torch

    return torch.compile(plain, dynamic=False, mode=mode)


def pytorch(tensors, axes):
    """Write the operator as a model does in PyTorch; both factors round to bf16 in between."""
    return {"out": plain(tensors["x"], tensors["w"])}


def torch_compile(tensors, axes):
    """Compile the same: cuBLAS, then one kernel for the rest."""
    return {"out": compiled()(tensors["x"], tensors["w"])}


def torch_compile_max(tensors, axes):
    """Compile it with the best product that PyTorch's compiler finds, its own among them."""
    return {"out": compiled("max-autotune-no-cudagraphs")(tensors["x"], tensors["w"])}


def flashinfer(tensors, axes):
    """Call cuBLAS, then FlashInfer's activation."""
    import torch
    from flashinfer import activation

    sums = torch.mm(tensors["x"], tensors["w"].t())
    activation.silu_and_mul(sums, out=tensors["out"], enable_pdl=True)


def sgl_aot(tensors, axes):
    """Call cuBLAS, then SGLang's prebuilt activation."""
    import torch

    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    operators.silu_and_mul.default(tensors["out"], torch.mm(tensors["x"], tensors["w"].t()))


def sgl_jit(tensors, axes):
    """Call cuBLAS, then SGLang's activation that is compiled when it is first called."""
    import torch
    from sglang.kernels.ops.activation import activation

    activation.silu_and_mul(torch.mm(tensors["x"], tensors["w"].t()), tensors["out"])


production = "sgl-jit"
peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "torch.compile-max": torch_compile_max,
    "flashinfer": flashinfer,
    "sgl-aot": sgl_aot,
    "sgl-jit": sgl_jit,
}
