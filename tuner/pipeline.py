"""Trials on their way to the device, which verifies and times one after the other meanwhile."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from tuner.evaluate import Evaluator, Pending
from tuner.kernel import Workload
from tuner.trial import Trial

# Trials begun and not taken yet: one on the device, the others compiled or nearly so. Fixed, not
# taken from the number of cores: the same seed must make the same proposals everywhere.
DEPTH = 8
# The same where every config was compiled before it is begun: fewer, since each is proposed
# without knowing of those under way.
DEPTH_FORESEEN = 4
# While a searcher computes, the device's thread gets its turn this soon (Python's 5 ms, ten times
# for every trial, would be longer than the trial).
SWITCH_S = 5e-4
# What an interrupted run waits for the trial on the device, so that it isn't lost.
LAST_TRIAL_S = 1.0


class Pipeline:
    """Take trials in the order in which they were begun; a thread of its own waits for the device.

    What is known already passes through. A trial is judged slow by the best time that the same
    workload had before it, known ones included: the order alone decides, not the speed of this
    machine.
    """

    def __init__(self, evaluator: Evaluator, *, adaptive: bool = True) -> None:
        self._evaluator, self._adaptive = evaluator, adaptive
        self._best_us: dict[Workload, float] = {}
        self._stopped = Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._under_way: deque[Future[Trial | None]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, one: Pending | Trial) -> None:
        """Send a started trial, or one that is known, to the device."""
        self._under_way.append(self._thread.submit(self._finish, one))

    def take(self) -> Trial:
        """Wait for the trial that was begun first."""
        trial = self._under_way[0].result()
        self._under_way.popleft()
        assert trial is not None
        return trial

    def finished(self) -> Iterator[Trial]:
        """Take what has ended when the rest is given up, and end the thread."""
        self.close()
        for future in self._under_way:
            if future.cancelled():
                return
            try:
                trial = future.result(LAST_TRIAL_S)
            except BaseException:  # noqa: BLE001 - whoever gave up knows why already
                return
            if trial is not None:
                yield trial

    def close(self) -> None:
        """End the thread, without what it has not begun."""
        self._stopped.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _finish(self, one: Pending | Trial) -> Trial | None:
        if self._stopped.is_set():
            return None
        try:
            trial = one if isinstance(one, Trial) else self._measured(one)
        except BaseException:
            self._stopped.set()  # the others wait for nothing
            raise
        best_us = self._best_us.get(trial.workload)
        if trial.time_us is not None and (best_us is None or trial.time_us < best_us):
            self._best_us[trial.workload] = trial.time_us
        return trial

    def _measured(self, pending: Pending) -> Trial:
        incumbent_us = self._best_us.get(pending.workload) if self._adaptive else None
        return self._evaluator.finish(pending, incumbent_us=incumbent_us)


@contextmanager
def prompt_threads() -> Iterator[None]:
    """Let threads take turns often enough that the device never waits for a searcher."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
