"""What a comparison does about clocks that a GPU does not keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tuner.device.cuda import worker
from tuner.device.cuda.replays import Captured, Replays
from tuner.device.cuda.worker import CudaWorker
from tuner.device.timing import FINALS

# Of 20 calls of an MoE layer of 2,048 tokens.
REPLAY_US = 10e3
BOOST, BOOST_S = 0.95, 50e-3


class Gpu:
    """A GPU that has higher clocks for `boost_s` of load after each pause, and its host's clock."""

    def __init__(self, boost_s: float) -> None:
        self.now_s, self.loaded_s, self._boost_s = 0.0, 0.0, boost_s

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s, self.loaded_s = self.now_s + seconds, 0.0

    def run(self, graphs: Sequence[Any], _: Sequence[Any] = ()) -> tuple[list[float], float]:
        times_us = []
        for _graph in graphs:
            boosted = self.loaded_s < self._boost_s
            times_us.append(REPLAY_US * (BOOST if boosted else 1.0))
            self.loaded_s += times_us[-1] * 1e-6
            self.now_s += times_us[-1] * 1e-6
        return times_us, sum(times_us) * 1e-6


@pytest.mark.parametrize(("boost_s", "falls"), [(BOOST_S, True), (math.inf, False)])
def test_rows_of_every_draw_begin_with_clocks_that_the_gpu_keeps(
    monkeypatch: pytest.MonkeyPatch, boost_s: float, falls: bool
) -> None:
    gpu, of = Gpu(boost_s), CudaWorker.__new__(CudaWorker)
    monkeypatch.setattr(worker, "time", gpu)
    programs: Any = [object() for _ in range(7)]
    compared = Captured((), FINALS, programs, (), programs)
    spent_s = []
    gpu.run(programs)  # as capturing does
    for draw in range(3):
        if draw:
            gpu.sleep(0.1)
        began_s, replays = gpu.now_s, cast("Replays", gpu)
        of._run_in(compared, FINALS, replays, rounds=2, new=draw == 0)
        spent_s.append(gpu.now_s - began_s)
        assert (gpu.loaded_s < BOOST_S) is (draw > 0 and not falls)
    assert compared.lowers_clocks is falls
    assert spent_s[0] >= 2 * FINALS.settle_s
    most_s = FINALS.settle_s + 2e-6 * REPLAY_US if falls else 0.0
    assert max(spent_s[1:]) <= most_s
