"""The sum of each row, with weights for its columns."""


def reference(xp, inputs, axes):
    return {"out": (inputs["x"] * inputs["w"]).sum(axis=1)}
