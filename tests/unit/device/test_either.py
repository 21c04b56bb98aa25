"""What CuPy lacks NumPy computes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.device.verify.answers import EitherLibrary

GPU = SimpleNamespace(asnumpy=np.asarray, asarray=np.asarray, cumsum=np.cumsum)


def running_most(xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    CALLS.append(xp)
    return {"y": xp.maximum.accumulate(inputs["x"])}


def sums(xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    CALLS.append(xp)
    return {"y": xp.cumsum(inputs["x"])}


CALLS: list[Any] = []
INPUTS = {"x": np.array([1.0, 3.0, 2.0])}


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def test_what_the_gpus_library_has_is_computed_there() -> None:
    assert EitherLibrary().call(GPU, sums, INPUTS)["y"].tolist() == [1.0, 4.0, 6.0]
    assert CALLS == [GPU]


def test_what_it_lacks_is_computed_with_numpy_from_then_on() -> None:
    either = EitherLibrary()
    for _ in range(2):
        assert either.call(GPU, running_most, INPUTS)["y"].tolist() == [1.0, 3.0, 3.0]
    assert [GPU, np, np] == CALLS


def test_what_neither_can_is_said_by_numpy_each_time() -> None:
    def wrong(xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"y": xp.nonsense(inputs["x"])}

    either = EitherLibrary()
    for _ in range(2):
        with pytest.raises(AttributeError, match="numpy"):
            either.call(GPU, wrong, INPUTS)
    assert either.call(GPU, sums, INPUTS)["y"].tolist() == [1.0, 4.0, 6.0]
    assert CALLS == [GPU]
