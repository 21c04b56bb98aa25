"""The float64 reference of silu_and_mul, gelu_and_mul and gelu_tanh_and_mul."""

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
