"""Every element doubled."""


def reference(xp, inputs, axes):
    return {"y": 2.0 * inputs["x"]}
