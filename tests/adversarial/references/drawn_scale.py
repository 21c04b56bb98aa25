"""Twice each number, of numbers that are drawn here and not by a fill."""


def inputs(xp, rng, axes, fill):
    scale = {"x3": 3.0, "x0.01": 0.01, "zeros": 0.0}.get(fill, 1.0)
    return {"x": scale * rng.standard_normal(axes["T"])}


def reference(xp, inputs, axes):
    return {"y": 2 * inputs["x"]}
