"""Call functions of a user's file with CuPy, or with NumPy where CuPy lacks what they use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tuner.device.encoding import Array

# What CuPy raises for a function, method or argument that it has not, and for an array of NumPy's.
LACKS = (AttributeError, NotImplementedError, TypeError)


class EitherLibrary:
    """Call a function with the memory's array library, or with NumPy once only that has worked."""

    def __init__(self) -> None:
        self._with_numpy = False

    def call(
        self,
        xp: Any,
        function: Callable[[Any, Mapping[str, Array]], Any],
        inputs: Mapping[str, Array],
    ) -> Any:
        """Return what `function(xp, inputs)` gives, arrays of `xp`; what NumPy raises is raised."""
        if xp is np:
            return function(np, inputs)
        if not self._with_numpy:
            try:
                return function(xp, inputs)
            except LACKS:
                pass  # NumPy says what is wrong, if more is wrong than that it is CuPy
        given = {name: xp.asnumpy(values) for name, values in inputs.items()}
        results = function(np, given)
        self._with_numpy = True
        if not isinstance(results, Mapping):
            return results
        return {n: xp.asarray(v) if isinstance(v, np.ndarray) else v for n, v in results.items()}
