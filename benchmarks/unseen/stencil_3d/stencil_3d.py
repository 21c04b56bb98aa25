"""The float64 reference of stencil_3d, and inputs whose sums do not cancel."""

CENTER, SIDE = 0.4, 0.1  # as in stencil_3d.yaml
SCALES = (2.0**-90, 2.0**-10, 1.0, 2.0**30, 2.0**90)  # of the points of `extreme`


def reference(xp, inputs, axes):
    """Weigh each point and its six neighbours in float64; `xp` is NumPy or CuPy."""
    field = inputs["in"]
    padded = xp.pad(field, 1)
    sides = sum(
        xp.roll(padded, shift, axis)[1:-1, 1:-1, 1:-1] for axis in range(3) for shift in (1, -1)
    )
    return {"out": CENTER * field + SIDE * sides}


def inputs(xp, rng, axes, fill):
    """Draw for the fill `extreme` points of one sign and many magnitudes."""
    if fill != "extreme":
        return {}
    shape = tuple(axes[name] for name in "ZYX")
    drawn = (rng.random(shape, dtype=xp.float32) * len(SCALES)).astype(xp.int32)
    scales = xp.asarray(SCALES, dtype=xp.float32)[xp.minimum(drawn, len(SCALES) - 1)]
    return {"in": scales * rng.random(shape, dtype=xp.float32)}
