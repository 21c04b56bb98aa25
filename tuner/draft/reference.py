"""The stub of a reference: the contract, with a body that says it is still to be written."""

from __future__ import annotations

from tuner.source import KernelFunction

# How the body of a stub begins: what tells a draft from a reference.
UNWRITTEN = 'raise ValueError("fill in reference()'

_STUB = '''"""The float64 reference of {kernel}: what its outputs must be."""


def reference(xp, inputs, axes, **operator):
    """Return every output by name, computed in float64.

    xp        numpy or cupy
    inputs    the input arrays by name{names}
    axes      the sizes of the workload by name
    operator  the operator's choices, where the search space declares any

    Where some inputs make no sense, a function inputs(xp, rng, axes, fill) beside this one draws
    others (docs/trust.md).
    """
    raise ValueError("fill in reference() in {stem}.py: return {{{outputs}}} in float64")
'''


def reference_stub(kernel: KernelFunction, stem: str) -> str:
    """Write the stub for one kernel."""
    arrays = [parameter for parameter in kernel.parameters if parameter.pointers]
    inputs = ", ".join(parameter.name for parameter in arrays if parameter.const)
    outputs = ", ".join(f"'{p.name}': ..." for p in arrays if not p.const) or "'name': ..."
    names = f": {inputs}" if inputs else ""
    return _STUB.format(kernel=kernel.name, stem=stem, names=names, outputs=outputs)
