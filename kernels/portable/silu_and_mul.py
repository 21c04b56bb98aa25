"""The float64 reference of silu_and_mul, for all languages."""


def reference(xp, inputs, axes):
    """Compute `gate / (1 + exp(-gate)) * up`; each row of `input` holds gate, then up."""
    width = axes["D"]
    gate, up = inputs["input"][:, :width], inputs["input"][:, width:]
    return {"out": gate / (1.0 + xp.exp(-gate)) * up}
