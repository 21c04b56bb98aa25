def reference(xp, inputs, axes):
    return {"y": 2.0 * inputs["x"], "notes": xp.zeros((8192, 16))}
