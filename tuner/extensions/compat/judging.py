"""Compare what kernels leave in their arguments with an answer, or with another config's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

# How far two right configs may be apart, relative to the largest number of the array: sums in
# another order, and of 8 bits one code. Whole numbers are equal.
APART = {
    "float8_e5m2": 0.25,
    "float8_e4m3fn": 0.125,
    "bfloat16": 4e-2,
    "float16": 1e-2,
    "float32": 1e-4,
    "float64": 1e-9,
}


@dataclass(frozen=True, slots=True)
class Judge:
    """Say what is wrong with a kernel's outputs.

    `expected` has an array for each argument that is compared, None for the others. With
    `is_answer` it is the caller's, compared as `numpy.allclose` does with `atol`, or by `verify`;
    else it is another config's. `verify=False` compares nothing. `dtypes` are those of arrays that
    are held in a wider one.
    """

    expected: Sequence[Any]
    atol: float = 1e-6
    verify: Callable[..., Any] | Literal[False] | None = None
    is_answer: bool = True
    dtypes: Sequence[str] = ()

    def fault(self, outputs: Sequence[Any]) -> str:
        """Describe the first difference, "" where there is none."""
        if self.verify is False:
            return ""
        pairs = list(zip(self.expected, outputs, strict=True))
        if self.verify is not None:
            found = [None if answer is None else values for answer, values in pairs]
            asked = {"atol": self.atol} if _takes_atol(self.verify) else {}
            return "" if self.verify(self.expected, found, **asked) else "`verify` refuses it"
        for place, (answer, values) in enumerate(pairs):
            if answer is None:
                continue
            dtype = self.dtypes[place] if self.dtypes else values.dtype.name
            if text := self._difference(np.asarray(answer), values, dtype):
                whose = "" if self.is_answer else ", unlike the first config"
                return f"argument {place}: {text}{whose}"
        return ""

    def _difference(self, answer: Any, values: Any, dtype: str) -> str:
        if answer.shape != values.shape and answer.size != values.size:
            return f"the answer has the shape {answer.shape}, and it {values.shape}"
        wide = np.float64 if values.dtype.kind in "fV" else values.dtype
        wanted, found = answer.reshape(-1).astype(wide), values.reshape(-1).astype(wide)
        if self.is_answer:
            right = np.isclose(found, wanted, atol=self.atol)
        elif dtype in APART:
            share = APART[dtype]
            finite = np.abs(wanted[np.isfinite(wanted)])
            largest = float(finite.max(initial=0.0))
            right = np.isclose(found, wanted, rtol=share, atol=share * largest, equal_nan=True)
        else:
            right = found == wanted
        if right.all():
            return ""
        first = int(np.argmin(right))
        count = int(right.size - right.sum())
        return f"[{first}] is {found[first]}, expected {wanted[first]} ({count} elements differ)"


def _takes_atol(verify: Callable[..., Any]) -> bool:
    try:
        taken = inspect.signature(verify).parameters
    except ValueError:
        return False
    return "atol" in taken or any(one.kind is one.VAR_KEYWORD for one in taken.values())
