"""Codes of eight bits, 0.07 apart."""


def reference(xp, inputs, axes):
    return {"y": xp.clip(inputs["x"] / 0.07, -127.0, 127.0)}
