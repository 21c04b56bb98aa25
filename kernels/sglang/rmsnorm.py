"""The float64 reference of rmsnorm, inputs whose squares a float can add up, and its peers."""

from functools import cache

EPS = 1.0e-6  # as in search_spaces/sglang/rmsnorm.yaml
# Rows so far apart that only eps counts in one and nothing of it in another.
ROW_SCALES = (2.0**-100, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes, GEMMA="false"):
    """Compute `x / sqrt(mean(x^2) + eps) * w` by rows in float64; `xp` is NumPy or CuPy."""
    x, w = inputs["x"], inputs["w"]
    weights = 1.0 + w if GEMMA == "true" else w
    return {"out": x / xp.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) * weights}


def inputs(xp, rng, axes, fill):
    """Draw x for the fill `extreme`: the squares of the largest bf16 are beyond any float."""
    if fill != "extreme":
        return {}
    x = rng.standard_normal((axes["T"], axes["H"]), dtype=xp.float32)
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)
    choice = (rng.random((axes["T"], 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    return {"x": x * scales[xp.minimum(choice, len(ROW_SCALES) - 1)]}


def pytorch(tensors, axes, GEMMA="false"):
    """PyTorch's own operator, eager."""
    import torch

    x, w = tensors["x"], tensors["w"]
    if GEMMA == "true":
        # In fp32, since 1 + w would be rounded to bf16.
        out = torch.nn.functional.rms_norm(x.float(), w.shape, w.float() + 1.0, EPS)
        return {"out": out.to(x.dtype)}
    return {"out": torch.nn.functional.rms_norm(x, w.shape, w, EPS)}


@cache
def compiled(bias):
    import torch

    def norm(x, w):
        values = x.float()
        scale = torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + EPS)
        return (values * scale * (bias + w.float())).to(x.dtype)

    return torch.compile(norm, dynamic=False)


def torch_compile(tensors, axes, GEMMA="false"):
    """The same in plain PyTorch, compiled."""
    bias = 1.0 if GEMMA == "true" else 0.0
    return {"out": compiled(bias)(tensors["x"], tensors["w"])}


def flashinfer(tensors, axes, GEMMA="false"):
    """FlashInfer's CUDA operator; with its CuTe DSL installed, `flashinfer.rmsnorm` is another."""
    from flashinfer import norm

    module = norm.get_norm_module()
    operator = module.gemma_rmsnorm if GEMMA == "true" else module.rmsnorm
    operator(tensors["out"], tensors["x"], tensors["w"], EPS, True)


def flashinfer_cute(tensors, axes, GEMMA="false"):
    """FlashInfer's operator in the CuTe DSL, which SGLang calls."""
    from flashinfer.norm.kernels import rmsnorm_cute

    bias = 1.0 if GEMMA == "true" else 0.0
    arguments = (tensors["x"], tensors["w"], tensors["out"])
    rmsnorm_cute(*arguments, EPS, weight_bias=bias, enable_pdl=True)


def sgl_aot(tensors, axes, GEMMA="false"):
    """SGLang's prebuilt operator, which its Python calls only where FlashInfer is missing."""
    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    operator = operators.gemma_rmsnorm if GEMMA == "true" else operators.rmsnorm
    operator.default(tensors["out"], tensors["x"], tensors["w"], EPS, True)


def sgl_jit(tensors, axes, GEMMA="false"):
    """SGLang's operator that is compiled for each width when it is first called."""
    from sglang.kernels.ops.layernorm import norm

    if GEMMA == "true":
        raise NotImplementedError("no such operator with weights 1 + w")
    if not norm._is_supported_rmsnorm_hidden_size(axes["H"]):
        raise NotImplementedError(f"no such operator for width {axes['H']}")
    norm.rmsnorm(tensors["x"], tensors["w"], tensors["out"], EPS)


production = "flashinfer-cute"
peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "flashinfer": flashinfer,
    "flashinfer-cute": flashinfer_cute,
    "sgl-aot": sgl_aot,
    "sgl-jit": sgl_jit,
}
