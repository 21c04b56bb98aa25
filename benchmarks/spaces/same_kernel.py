"""Twice the input, of which the last 26th is only there to be read."""


def reference(xp, inputs, axes):
    return {"out": 2.0 * inputs["input"][: axes["N"]]}
