"""Half of the input added in place."""


def reference(xp, inputs, axes):
    return {"total": inputs["total"] + 0.5 * inputs["x"]}
