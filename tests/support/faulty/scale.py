"""The reference of scale."""


def reference(xp, inputs, axes):
    return {"out": 2.0 * inputs["in"]}
