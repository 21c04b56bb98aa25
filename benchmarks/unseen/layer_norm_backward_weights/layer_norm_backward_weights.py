"""The float64 reference of layer_norm_backward_weights, and inputs whose sums do not cancel."""

SCALES = {"x3": 3.0, "x0.01": 0.01, "negated": -1.0}  # of the kinds of input that scale them all
# Of the columns of `extreme`.
COLUMN_SCALES = (2.0**-40, 2.0**-20, -1.0, 2.0**20, -(2.0**40))


def reference(xp, inputs, axes):
    """Sum `dy * (x - mean) * rstd` and `dy` over the rows, in float64; `xp` is NumPy or CuPy."""
    normalized = (inputs["x"] - inputs["mean"][:, None]) * inputs["rstd"][:, None]
    return {"dweight": (inputs["dy"] * normalized).sum(axis=0), "dbias": inputs["dy"].sum(axis=0)}


def inputs(xp, rng, axes, fill):
    """Draw means of the other sign than x, and for `extreme` columns of many magnitudes.

    Every term of a sum has the same sign: what is left of sums that cancel depends on the order.
    """
    rows, width = axes["T"], axes["H"]
    mean = -SCALES.get(fill, 1.0) * rng.random((rows,), dtype=xp.float32)
    if fill != "extreme":
        return {"mean": mean}
    scales = xp.asarray(COLUMN_SCALES, dtype=xp.float32)[xp.arange(width) % len(COLUMN_SCALES)]
    return {
        "mean": mean,
        "dy": scales * rng.random((rows, width), dtype=xp.float32),
        "x": rng.random((rows, width), dtype=xp.float32),
        "rstd": rng.random((rows,), dtype=xp.float32),
    }
