"""A side of a device that runs nothing, for tests of what is asked around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from tuner.device.base import Program
from tuner.device.layout import Arena, Patch
from tuner.device.timing import TimingPolicy
from tuner.device.verify.restarting_worker import Judge, Rows
from tuner.model.trial import Measurement


class IdleRunner:
    """Runs nothing, in no time; has what `VerifiedDevice` calls of `RestartingWorker`."""

    by_pages = False
    noise_us = 0.0

    def orders(self) -> Iterator[int]:
        return count()

    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        return ""

    def time(
        self, program: Program, policy: TimingPolicy, best: float | None, patch: Patch, judge: Judge
    ) -> Measurement:
        judge(0, 0, True)
        return Measurement((1.0,), 1, 1)

    def rerun(self, program: Program) -> None: ...

    def compare(
        self, programs: Sequence[Program], rounds: int, patch: Patch, judge: Judge | None
    ) -> Rows:
        return [(1.0,) * len(programs)] * rounds

    def isolated_us(self, programs: Sequence[Program]) -> tuple[float | None, ...]:
        return (None,) * len(programs)

    def alone_us(self, programs: Sequence[Program]) -> tuple[float, ...]:
        return ()

    def attach(self, arena: Arena, surroundings: object = None) -> None: ...

    def detach(self) -> None: ...
