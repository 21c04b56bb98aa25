"""The float64 reference of tiled_matmul_f32, and inputs whose sums do not cancel."""

ROW_SCALES = (2.0**-50, 2.0**-10, -1.0, 2.0**30, -(2.0**50))  # of A in `extreme`


def reference(xp, inputs, axes):
    """Multiply in float64; `xp` is NumPy or CuPy."""
    return {"c": inputs["a"] @ inputs["b"]}


def inputs(xp, rng, axes, fill):
    """Draw for the fill `extreme` rows of A, each of one sign, of many magnitudes."""
    if fill != "extreme":
        return {}
    rows, columns, depth = axes["M"], axes["N"], axes["K"]
    scales = xp.asarray(ROW_SCALES, dtype=xp.float32)[xp.arange(rows) % len(ROW_SCALES)]
    return {
        "a": scales[:, None] * rng.random((rows, depth), dtype=xp.float32),
        "b": rng.random((depth, columns), dtype=xp.float32),
    }
