"""Past searches, and stores of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.session.knowledge import (
    KnowledgeStore,
    PastConfig,
    PastSearch,
    PastWorkload,
    find_store,
)


@pytest.fixture
def store(tmp_path: Path) -> KnowledgeStore:
    return KnowledgeStore(find_store(str(tmp_path / "knowledge.sqlite"), {}))


@pytest.fixture
def make_search():
    """Make the past search of a kernel with blocks; a time of None is a wrong result."""

    def make(
        times_us: dict[int, float | None],
        *,
        size: int = 1000,
        baseline_us: float | None = 10.0,
        **changes,
    ) -> PastSearch:
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

    return make
