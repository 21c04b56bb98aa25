"""What a definition takes from a reference file, and how inputs are stored beside it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tuner.extensions.export.flashinfer.definition import needed_code
from tuner.extensions.export.flashinfer.package import safetensors

MODULE = '''\
"""A reference file."""

from functools import cache
from math import sqrt

SCALE = 2.0  # of the operator
OTHER = 3.0


def reference(xp, inputs, axes):
    """Scale and take the root."""
    return {"out": root(inputs["x"] * SCALE)}


def inputs(xp, rng, axes, fill):
    return {"x": OTHER}


@cache
def root(value):
    return sqrt(value)


def peer(tensors, axes):
    import sglang

    return sglang.root(tensors["x"])


peers = {"sglang": peer}
'''


def test_a_reference_comes_with_what_it_needs_and_nothing_else() -> None:
    code, names, modules = needed_code(MODULE, "reference")
    assert names == {"SCALE", "cache", "reference", "root", "sqrt"}
    assert modules == {"functools", "math"}
    assert "SCALE = 2.0  # of the operator" in code
    scope: dict[str, object] = {}
    exec(code, scope)  # noqa: S102
    reference = scope["reference"]
    assert callable(reference)
    assert reference(None, {"x": 8.0}, {}) == {"out": 4.0}


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("import os.path", {"os"}),
        ("from numpy import linalg", {"numpy"}),
        ("from .words import SCALE", {"."}),
    ],
)
def test_modules_are_found_where_a_function_imports_them(line: str, modules: set[str]) -> None:
    text = f"def reference(xp, inputs, axes):\n    {line}\n    return {{}}\n"
    assert needed_code(text, "reference")[2] == modules


def test_arrays_are_stored_with_their_bits() -> None:
    bits = np.array([[0x3F80, 0x4000]], np.uint16)
    ids = np.arange(3, dtype=np.int32)
    data = safetensors({"w": ("bfloat16", bits), "ids": ("int32", ids)})
    size = int.from_bytes(data[:8], "little")
    header, stored = json.loads(data[8 : 8 + size]), data[8 + size :]
    assert size % 8 == 0
    assert header["w"] == {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}
    assert header["ids"] == {"dtype": "I32", "shape": [3], "data_offsets": [4, 16]}
    assert stored == bits.tobytes() + ids.tobytes()
