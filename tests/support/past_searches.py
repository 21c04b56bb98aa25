"""What a past run found on a kernel with blocks, made up."""

from __future__ import annotations

from typing import Any

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.session.knowledge import PastConfig, PastSearch, PastWorkload


def past_search(
    times_us: dict[int, float | None],
    *,
    size: int = 1000,
    baseline_us: float | None = 10.0,
    **changes: Any,
) -> PastSearch:
    """Make a past search, its times by block; a time of None is a wrong result."""
    configs = tuple(
        PastConfig(
            Config.of({"block": block, "items": 1}),
            Status.INCORRECT if time_us is None else Status.CORRECT,
            time_us,
        )
        for block, time_us in times_us.items()
    )
    fields = {
        "kernel": "scale",
        "operators": {},
        "device": "NVIDIA H200",
        "architecture": "sm_90a",
        "candidate": "initial",
        "template_sha": "t",
        "parameters": ("block", "items"),
        "tuner_version": "0",
        "created": "2026-01-01T00:00:00+00:00",
        "state": "complete",
        "workloads": (PastWorkload(Workload((("N", size),)), baseline_us, configs),),
    }
    return PastSearch(**{**fields, **changes})
