"""Trials on their way to the device, which verifies and times one after the other meanwhile."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Trial
from tuner.search.base import Features, Searcher, StaticFeatureAware, TransferLearning
from tuner.tuning.evaluator import Evaluator, Pending

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


class TrialExecutor:
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
        best_us, finish = self._best_us.get(one.workload), self._evaluator.finish
        incumbent_us = best_us if self._adaptive else None
        try:
            trial = one if isinstance(one, Trial) else finish(one, incumbent_us=incumbent_us)
        except BaseException:
            self._stopped.set()  # the others wait for nothing
            raise
        if trial.time_us is not None and (best_us is None or trial.time_us < best_us):
            self._best_us[trial.workload] = trial.time_us
        return trial


@contextmanager
def executing(evaluator: Evaluator, keep: Callable[[Trial], None]) -> Iterator[TrialExecutor]:
    """Make an executor for a block; where that raises, `keep` takes what has ended by then."""
    executor = TrialExecutor(evaluator)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield executor
    except BaseException:
        for trial in executor.finished():
            keep(trial)
        raise
    finally:
        executor.close()
        sys.setswitchinterval(before_s)


# Compilations of a shortlist that may be under way: enough for 16 cores, and fixed, so that the
# same seed makes the same proposals everywhere.
AHEAD = 16


class PrecompilingSearcher:
    """Ask one searcher for configs and tell it what came of them.

    A `StaticFeatureAware` searcher names more configs than it asks for. They are compiled, and it
    learns what the compiler says of each once `AHEAD` later ones are being compiled: nobody waits.
    """

    def __init__(self, searcher: Searcher, evaluator: Evaluator, workload: Workload) -> None:
        self.workload = workload
        self._searcher, self._evaluator = searcher, evaluator
        self._compiling: deque[Pending] = deque()
        self._compiled: dict[Config, Pending] = {}
        self._features: dict[Config, Features] = {}
        self._refused: list[Trial] = []

    def next(self) -> Pending | None:
        """Propose a config, its compilation begun; None when the searcher has none left."""
        searcher = self._searcher
        if isinstance(searcher, StaticFeatureAware):
            for config in searcher.shortlist(1):
                self._compiling.append(self._evaluator.start(self.workload, config))
            while len(self._compiling) > AHEAD:
                self._foresee_next(searcher)
        while not (configs := searcher.ask(1)):
            if not self._compiling or not isinstance(searcher, StaticFeatureAware):
                return None
            self._foresee_next(searcher)
        (config,) = configs
        return self._compiled.pop(config, None) or self._evaluator.start(self.workload, config)

    def refused(self) -> list[Trial]:
        """Take the trials of configs that were compiled ahead and can't run; they are told."""
        taken, self._refused = self._refused, []
        return taken

    def tell(self, trial: Trial) -> None:
        self._searcher.tell(trial)

    def share(self, trial: Trial, features: Features | None) -> None:
        """Pass on a trial of another workload, if the searcher has a use for it."""
        if isinstance(self._searcher, TransferLearning):
            self._searcher.share(trial, features)

    def features(self, config: Config) -> Features | None:
        return self._features.get(config)

    def expected_gain(self) -> float | None:
        """Return the share of the best time that may still be saved, None where nobody knows."""
        searcher = self._searcher
        return searcher.expected_gain() if isinstance(searcher, TransferLearning) else None

    def close(self) -> None:
        """Give up what is being compiled and was not asked for."""
        for pending in self._compiling:
            if pending.compilation is not None:
                pending.compilation.cancel()

    def _foresee_next(self, searcher: StaticFeatureAware) -> None:
        pending = self._compiling.popleft()
        seen = self._evaluator.foresee(pending)
        if isinstance(seen, Trial):
            self._searcher.tell(seen)
            self._refused.append(seen)
        else:
            self._compiled[pending.config] = pending
            self._features[pending.config] = seen
            searcher.foresee(pending.config, seen)
