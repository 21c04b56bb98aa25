"""The float64 reference of sgemm: what its outputs must be."""


def reference(xp, inputs, axes, **operator):
    """Return every output by name, computed in float64.

    xp        numpy or cupy
    inputs    the input arrays by name: A, B
    axes      the sizes of the workload by name
    operator  the operator's choices, where the search space declares any

    Where some inputs make no sense, a function inputs(xp, rng, axes, fill) beside this one draws
    others (docs/trust.md).
    """
    raise ValueError("fill in reference() in tiled_sgemm.py: return {'C': ...} in float64")
