"""The reference of a kernel that writes one number."""


def reference(xp, inputs, axes):
    """Return the one number."""
    return {"out": xp.ones((axes["N"],))}
