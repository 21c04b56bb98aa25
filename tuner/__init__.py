"""Tune CUDA kernels by constrained search over templates, with measurements behind every claim."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tuner.model.version import TUNER_VERSION

if TYPE_CHECKING:
    from tuner.app.rewards import Effort, GrpoReward, reward

__all__ = ["Effort", "GrpoReward", "__version__", "reward"]
__version__ = TUNER_VERSION

_IN_REWARDS = frozenset({"Effort", "GrpoReward", "reward"})


def __getattr__(name: str) -> object:
    """Import what `import tuner` alone need not pay for."""
    if name not in _IN_REWARDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tuner.app.rewards"), name)
