"""What the verifier of a bench runs: inputs as they were given, and outputs kept for the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner.device.encoding import Array

# The file that the verifier imports. It judges nothing: whoever asked compares the outputs.
TEXT = """from pathlib import Path

from tuner.extensions.compat.recorder import Recorder

fixed = True
recorder = Recorder(Path({folder!r}), {written!r})
inputs, reference, canonical = recorder.inputs, recorder.reference, recorder.canonical
"""


class Recorder:
    """Give the arrays of `inputs/NAME.npy`, and write what kernels leave to `outputs/`.

    `written` names the arrays that a kernel may write.
    """

    def __init__(self, folder: Path, written: Sequence[str]) -> None:
        self._folder, self._written = folder, written
        self._given: dict[str, Any] = {}

    def inputs(self, xp: Any, rng: Any, axes: Mapping[str, int], fill: str) -> dict[str, Array]:
        for path in (self._folder / "inputs").glob("*.npy") if not self._given else ():
            self._given[path.stem] = xp.asarray(np.load(path))
        return dict(self._given)

    def reference(
        self, xp: Any, inputs: Mapping[str, Array], axes: Mapping[str, int]
    ) -> dict[str, Array]:
        return {name: xp.zeros(inputs[name].shape) for name in self._written}

    def canonical(
        self, xp: Any, outputs: Mapping[str, Array], axes: Mapping[str, int]
    ) -> dict[str, Array]:
        kept = self._folder / "outputs"
        number = len({path.name.partition(".")[0] for path in kept.iterdir()})
        for name, values in outputs.items():
            host = values if xp.__name__ == "numpy" else xp.asnumpy(values)
            np.save(kept / f"{number:04d}.{name}.npy", host)
        return {name: xp.zeros_like(values) for name, values in outputs.items()}
