"""The float64 reference of rmsnorm, and inputs whose squares a float can add up."""

EPS = 1.0e-6  # as in search_spaces/sglang/rmsnorm.yaml
# Rows so far apart that only eps counts in one and nothing of it in another.
ROW_SCALES = (2.0**-100, 2.0**-10, 1.0, 2.0**50)


def reference(xp, inputs, axes):
    """Compute `x / sqrt(mean(x^2) + eps) * w` by rows in float64; `xp` is NumPy or CuPy."""
    x, w = inputs["x"], inputs["w"]
    return {"out": x / xp.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) * w}


def inputs(xp, rng, axes, fill):
    """Draw x for the fill `extreme`: the squares of the largest bf16 are beyond any float."""
    if fill != "extreme":
        return {}
    x = rng.standard_normal((axes["T"], axes["H"]), dtype=xp.float32)
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)
    choice = (rng.random((axes["T"], 1), dtype=xp.float32) * len(ROW_SCALES)).astype(xp.int32)
    return {"x": x * scales[xp.minimum(choice, len(ROW_SCALES) - 1)]}
