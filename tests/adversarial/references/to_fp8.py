"""A hundred times the input, as far as eight bits reach."""


def reference(xp, inputs, axes):
    return {"y": 100.0 * inputs["x"]}
