"""Search spaces of kernels that are Python functions, and their inputs, drawn as for any kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tuner.device.encoding import decode, encode
from tuner.device.inputs import draw_values, generator
from tuner.device.reference import load_reference
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.space.load import Definition, load_definition

ROOT = Path(__file__).parents[2]
SPACES, KERNELS = ROOT / "search_spaces" / "sglang", ROOT / "kernels" / "sglang"
H200: Mapping[str, Value] = {
    **{"max_threads": 1024, "max_shared_bytes": 232448, "multiprocessors": 132, "warp_size": 32},
    **{"successor_waits": False},
}


@cache
def callable_space(name: str, **operators: str) -> Definition:
    """Read a space of a Python kernel."""
    return load_definition(SPACES / f"{name}.yaml", operators)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Inputs as the verifier draws and rounds them, and what has to come out."""

    stored: Mapping[str, Any]
    values: Mapping[str, Any]
    out: Any


def drawn(name: str, axes: Mapping[str, int], fill: str, seed: int, **operators: str) -> Drawn:
    """Draw all inputs of a Python kernel on the host, and compute its reference."""
    spec = callable_space(name, **operators).spec
    operators = {**{one.name: one.values[0] for one in spec.operators}, **operators}
    reference = load_reference(KERNELS / f"{name}.py")
    rng = generator(np, seed)
    given = reference.drawn(np, rng, axes, fill, operators)
    workload = Workload(dict(axes))
    names = {**workload.values, **operators}
    stored = {}
    for argument in spec.arguments:
        if argument.role == "input":
            shape = argument.dimensions(names)
            values = given.get(argument.name)
            if values is None:
                values = draw_values(np, rng, argument, fill, shape, names)
            assert values.shape == shape, argument.name
            stored[argument.name] = encode(np, values, argument.dtype)
    dtypes = {argument.name: argument.dtype for argument in spec.arguments}
    values = {key: decode(np, raw, dtypes[key]) for key, raw in stored.items()}
    out = reference.compute(np, values, axes, **operators)["out"]
    return Drawn(stored, values, out)


def derived(name: str, wanted: str, config: Mapping[str, Value], **operators: str) -> Value:
    """Compute a derived name of a space for one config."""
    (one,) = (one for one in callable_space(name, **operators).space.derived if one.name == wanted)
    return one.expression.evaluate({**config, **operators})
