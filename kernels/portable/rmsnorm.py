"""The float64 reference of rmsnorm, for all languages."""

EPS = 1.0e-6  # as in search_spaces/portable/rmsnorm.*.yaml


def reference(xp, inputs, axes):
    """Compute `x / sqrt(mean(x^2) + eps) * w` by rows."""
    x = inputs["x"]
    return {"out": x / xp.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) * inputs["w"]}
