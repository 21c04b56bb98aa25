"""The float64 reference of silu_and_mul, gelu_and_mul and gelu_tanh_and_mul."""

from functools import cache
from math import pi, sqrt


def reference(xp, inputs, axes, ACTIVATION="silu"):
    """Compute `activation(gate) * up` in float64; `xp` is NumPy or CuPy."""
    d = axes["D"]
    gate, up = inputs["input"][:, :d], inputs["input"][:, d:]
    return {"out": ACTIVATIONS[ACTIVATION](xp, gate) * up}


def silu(xp, x):
    return x / (1.0 + xp.exp(-x))


def gelu(xp, x):
    if xp.__name__ == "numpy":
        from scipy.special import erfc
    else:
        from cupyx.scipy.special import erfc
    return 0.5 * x * erfc(-x / sqrt(2.0))


def gelu_tanh(xp, x):
    return 0.5 * x * (1.0 + xp.tanh(sqrt(2.0 / pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}


def plain(gate, up, ACTIVATION):
    """Write the operator as a model does in PyTorch; both factors round to bf16 in between."""
    from torch.nn import functional

    if ACTIVATION == "silu":
        return functional.silu(gate) * up
    return functional.gelu(gate, approximate="tanh" if ACTIVATION == "gelu_tanh" else "none") * up


@cache
def compiled_plain():
    import torch

    return torch.compile(plain, dynamic=False)


def pytorch(tensors, axes, ACTIVATION="silu"):
    gate, up = tensors["input"].chunk(2, dim=1)
    return {"out": plain(gate, up, ACTIVATION)}


def torch_compile(tensors, axes, ACTIVATION="silu"):
    gate, up = tensors["input"].chunk(2, dim=1)
    return {"out": compiled_plain()(gate, up, ACTIVATION)}


def flashinfer(tensors, axes, ACTIVATION="silu"):
    from flashinfer import activation

    operator = getattr(activation, f"{ACTIVATION}_and_mul")
    operator(tensors["input"], out=tensors["out"], enable_pdl=True)


def sgl_aot(tensors, axes, ACTIVATION="silu"):
    """SGLang's prebuilt operator."""
    from tuner.device.reference import torch_operators

    operators = torch_operators("sgl_kernel", "sm90/common_ops.*")
    operator = getattr(operators, f"{ACTIVATION}_and_mul")
    operator.default(tensors["out"], tensors["input"])


def sgl_jit(tensors, axes, ACTIVATION="silu"):
    """SGLang's operator that is compiled when it is first called."""
    from sglang.kernels.ops.activation import activation

    getattr(activation, f"{ACTIVATION}_and_mul")(tensors["input"], tensors["out"])


production = "sgl-jit"
peers = {
    "pytorch": pytorch,
    "torch.compile": torch_compile,
    "flashinfer": flashinfer,
    "sgl-aot": sgl_aot,
    "sgl-jit": sgl_jit,
}
