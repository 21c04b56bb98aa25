"""Every row divided by its largest magnitude; a row of zeros stays as it is."""


def reference(xp, inputs, axes):
    largest = abs(inputs["x"]).max(axis=1, keepdims=True)
    return {"y": inputs["x"] / xp.where(largest == 0, 1.0, largest)}
