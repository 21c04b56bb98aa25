"""The float64 reference of per_token_quant_fp8: codes and scale of each row."""

LARGEST = 448.0  # of fp8 e4m3


def reference(xp, inputs, axes):
    """Compute q and scale in float64; `xp` is NumPy or CuPy. Rounding to fp8 is the judge's.

    One division a number, for halfway cases are many and an error decides them the wrong way.
    """
    x = inputs["x"]
    largest = xp.abs(x).max(axis=1, keepdims=True)
    return {
        "q": x * LARGEST / xp.where(largest > 0.0, largest, 1.0),
        "scale": largest[:, 0] / LARGEST,
    }
