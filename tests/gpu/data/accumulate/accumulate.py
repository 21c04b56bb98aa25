def reference(xp, inputs, axes):
    total = inputs["sum"] + 0.25 * inputs["x"]
    return {"sum": total, "q": total}
