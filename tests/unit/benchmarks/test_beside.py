"""The clock of the benchmarks of configs a second, which may not take its share of the seconds."""

from __future__ import annotations

import time
from types import SimpleNamespace

import beside
import pytest


def test_cpu_seconds_are_read_once_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[beside.Moment] = []
    told = beside.moment

    def moment() -> beside.Moment:
        asked.append(told())
        return asked[-1]

    monkeypatch.setattr(beside, "moment", moment)
    clock = beside.PhaseClock()
    for phase in ("baseline", "search", "search", "search"):
        clock.update(SimpleNamespace(phase=phase))
    ended_s = time.perf_counter()
    time.sleep(0.02)
    clock.update(SimpleNamespace(phase="finals"))
    assert len(asked) == 3
    began, last = clock.first["search"], clock.last("search")
    assert began[0] <= last[0] <= ended_s
    assert last[1:] == asked[-1][1:]
