"""SGLang's Triton kernel of an MoE layer's GEMMs, fp8 with a scale for 32 columns by 32 of K.

All else is as in fused_moe.py beside it, which stays as it is: recordings are of its text.
"""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "fused_moe_of_32", Path(__file__).with_name("fused_moe.py")
)
moe = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(moe)
moe.BLOCK = 32
FP8 = "fp8_block"


def launch(config, tensors, axes, PART="both", ROUTING="balanced", CONFIGS="one"):
    """Enqueue the sorting and the GEMMs of PART; `config` None is SGLang's choice."""
    moe.launch(config, tensors, axes, PART, FP8, ROUTING, CONFIGS)


def reference(xp, inputs, axes, PART="both", ROUTING="balanced", CONFIGS="one"):
    """Compute both GEMMs in float64."""
    return moe.reference(xp, inputs, axes, PART, FP8, ROUTING, CONFIGS)


def inputs(xp, rng, axes, fill, PART="both", ROUTING="balanced", CONFIGS="one"):
    """Draw routes, and weights whose sums are near 1 for every K."""
    return moe.inputs(xp, rng, axes, fill, PART, FP8, ROUTING, CONFIGS)


def without_file(tensors, axes, PART="both", ROUTING="balanced", CONFIGS="one"):
    """SGLang's kernel with the config that it guesses where it finds no file for a shape."""
    moe.without_file(tensors, axes, PART, FP8, ROUTING, CONFIGS)


peers = {"without_file": without_file}
