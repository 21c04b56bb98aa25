"""Every element with its weight."""


def reference(xp, inputs, axes):
    return {"y": inputs["x"] * inputs["w"]}
