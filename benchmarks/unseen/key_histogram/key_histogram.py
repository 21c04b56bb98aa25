"""The reference of key_histogram, and keys in as many bins as a workload asks for."""


def reference(xp, inputs, axes):
    """Count the keys of each bin; `xp` is NumPy or CuPy."""
    return {"counts": xp.bincount(inputs["keys"].astype(xp.int32), minlength=256)}


def inputs(xp, rng, axes, fill):
    """Draw keys below 2**B, all equally likely: few bits make many threads want the same bin."""
    drawn = rng.random((axes["N"],), dtype=xp.float32) * 2 ** axes["B"]
    return {"keys": drawn.astype(xp.uint8)}
