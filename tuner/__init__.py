"""Tune CUDA kernels by constrained search over templates, with measurements behind every claim."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tuner.model import TUNER_VERSION

if TYPE_CHECKING:
    from tuner.app.api import TuningResult, tune
    from tuner.app.check import check
    from tuner.app.render import render
    from tuner.extensions.agents.reward import Effort, GrpoReward, reward
    from tuner.extensions.compat.autotune import autotune
    from tuner.extensions.study.comparison import compare

__all__ = [
    "Effort",
    "GrpoReward",
    "TuningResult",
    "__version__",
    "autotune",
    "check",
    "compare",
    "render",
    "reward",
    "tune",
]
__version__ = TUNER_VERSION

_HOMES = {
    "Effort": "extensions.agents.reward",
    "GrpoReward": "extensions.agents.reward",
    "TuningResult": "app.api",
    "autotune": "extensions.compat.autotune",
    "check": "app.check",
    "compare": "extensions.study.comparison",
    "render": "app.render",
    "reward": "extensions.agents.reward",
    "tune": "app.api",
}


def __getattr__(name: str) -> object:
    """Import what `import tuner` alone need not pay for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"tuner.{_HOMES[name]}"), name)
