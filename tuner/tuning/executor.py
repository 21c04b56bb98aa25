"""Trials on their way to the device, which verifies and times one after the other meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import Event, Lock

from tuner.model.config import Config
from tuner.model.errors import OutOfMemory
from tuner.model.kernel import Workload
from tuner.model.trial import Trial
from tuner.process.tally import spent_on
from tuner.search.base import Features, Searcher, StaticFeatureAware, TransferLearning
from tuner.search.factory import RandomSearcher
from tuner.tuning.evaluator import COMPILING, Evaluator, Pending

# Trials begun and not taken yet: one on the device, the others compiled or nearly so. Fixed, not
# taken from the number of cores: the same seed must make the same proposals everywhere.
DEPTH = 8
# The same where every config was compiled before it is begun: fewer, since each is proposed
# without knowing of those under way.
DEPTH_FORESEEN = 4
# The most where proposals have a fixed order: what was begun when the time is over still runs.
DEPTH_IN_FIXED_ORDER = 32
# While a searcher computes, the thread that waits for the device gets its turn this soon. It needs
# several for each of the ten calls of a trial: with Python's 5 ms, or 0.5, it would wait for longer
# than some trials take.
SWITCH_S = 5e-5
# What an interrupted run waits for the trial on the device, so that it isn't lost.
LAST_TRIAL_S = 1.0


def depth_of(searcher: Searcher) -> int:
    """Count the trials of a search that may be under way.

    Whoever learns nothing proposes the same on every machine: there each core compiles two.
    """
    if isinstance(searcher, RandomSearcher):
        return max(DEPTH, min(2 * len(os.sched_getaffinity(0)), DEPTH_IN_FIXED_ORDER))
    return DEPTH_FORESEEN if isinstance(searcher, StaticFeatureAware) else DEPTH


@dataclass(slots=True)
class _Queue:
    """What waits for one member, a thread unless it runs several programs at once, and its trials
    with the order in which they began.
    """

    threads: ThreadPoolExecutor
    under_way: deque[tuple[int, Future[Trial | None]]] = field(default_factory=deque)
    # When its last trial ended.
    idle_since_s: float = 0.0


class TrialExecutor:
    """Take trials in the order in which they were begun; threads of its own wait for the device.

    Where `queue_of` tells workloads apart, each queue has threads and an order. What is known
    already passes through. A trial is judged slow by the best time that the same workload had
    before it, known ones included: the order alone decides, not the speed of this machine. Where
    `parallel` run at once, what has ended by then decides.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        adaptive: bool = True,
        queue_of: Callable[[Workload], int] = lambda workload: 0,
        parallel: int = 1,
    ) -> None:
        self._evaluator, self._adaptive, self._queue_of = evaluator, adaptive, queue_of
        self._parallel = parallel
        self._best_us: dict[Workload, float] = {}
        # Where memory has ended: the next ones would wait for two more attempts to find none.
        self._without_memory: dict[Workload, OutOfMemory] = {}
        self._stopped = Event()
        self._queues: dict[int, _Queue] = {}
        self._begun = 0
        # Of all queues.
        self._timing = Lock()
        self.device_s = self.compiler_s = 0.0

    def __len__(self) -> int:
        return sum(len(queue.under_way) for queue in self._queues.values())

    def under_way(self, queue: int) -> int:
        return len(self._queues[queue].under_way) if queue in self._queues else 0

    def begin(self, one: Pending | Trial) -> None:
        """Send a started trial, or one that is known, to the device."""
        number = self._queue_of(one.workload)
        if number not in self._queues:
            pool = ThreadPoolExecutor(self._parallel, thread_name_prefix=f"device-{number}")
            self._queues[number] = _Queue(pool)
        queue = self._queues[number]
        self._begun += 1
        queue.under_way.append((self._begun, queue.threads.submit(self._finish, one, queue)))

    def waited(self, workload: Workload, since_s: float) -> None:
        """Count as the compiler's what the workload's queue has since then had nothing to do."""
        queue = self._queues.get(self._queue_of(workload))
        idle_since_s = since_s
        if queue is not None:
            if not all(future.done() for _, future in queue.under_way):
                return
            idle_since_s = max(since_s, queue.idle_since_s)
        with self._timing:
            self.compiler_s += time.monotonic() - idle_since_s

    def take(self) -> Trial:
        """Wait for the trial that was begun first, or the first that ended of several queues.

        Where a queue runs several at once, any of them may be the one. Raises `OutOfMemory` for one
        whose workload finds no memory; those of others go on.
        """
        while True:
            waiting = {
                future: (number, queue)
                for queue in self._queues.values()
                for number, future in islice(queue.under_way, self._parallel)
            }
            ended = wait(waiting, return_when=FIRST_COMPLETED).done
            future = min(ended, key=lambda one: waiting[one][0])
            number, queue = waiting[future]
            queue.under_way.remove((number, future))
            trial = future.result()
            if trial is not None:  # else another queue has failed, and will say why
                return trial

    def take_ended(self) -> Iterator[Trial]:
        """Take what has ended when the rest is given up, and end the threads."""
        self.close()
        futures = [future for queue in self._queues.values() for _, future in queue.under_way]
        ended = wait(futures, timeout=LAST_TRIAL_S).done
        for future in futures:
            # Whoever gave up knows already why one has failed.
            if future in ended and not future.cancelled() and future.exception() is None:
                trial = future.result()
                if trial is not None:
                    yield trial

    def close(self) -> None:
        """End the threads, without what they have not begun."""
        self._stopped.set()
        for queue in self._queues.values():
            queue.threads.shutdown(wait=False, cancel_futures=True)

    def _finish(self, one: Pending | Trial, queue: _Queue) -> Trial | None:
        if self._stopped.is_set():
            return None
        try:
            trial = one if isinstance(one, Trial) else self._measure(one)
        except OutOfMemory as error:
            self._without_memory[one.workload] = error
            raise
        except BaseException:
            self._stopped.set()  # the others wait for nothing
            raise
        if trial.time_us is not None:
            with self._timing:  # one that ran beside it may have been faster
                best_us = self._best_us.get(trial.workload, trial.time_us)
                self._best_us[trial.workload] = min(best_us, trial.time_us)
        queue.idle_since_s = time.monotonic()
        return trial

    def _measure(self, pending: Pending) -> Trial:
        if error := self._without_memory.get(pending.workload):
            raise error
        incumbent_us = self._best_us.get(pending.workload) if self._adaptive else None
        began_s = time.monotonic()
        if pending.compilation is not None:
            with spent_on(COMPILING):
                wait([pending.compilation])
        compiled_s = time.monotonic()
        trial = self._evaluator.finish(pending, incumbent_us=incumbent_us)
        with self._timing:
            self.compiler_s += compiled_s - began_s
            self.device_s += time.monotonic() - compiled_s
        return trial


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Let a thread that waits for the device go on at once, whatever others compute or import."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


@contextmanager
def executing(
    evaluator: Evaluator,
    keep: Callable[[Trial], None],
    queue_of: Callable[[Workload], int] = lambda workload: 0,
) -> Iterator[TrialExecutor]:
    """Make an executor for a block; where that raises, `keep` takes what has ended by then."""
    parallel = evaluator.device.info.parallel
    executor = TrialExecutor(evaluator, queue_of=queue_of, parallel=parallel)
    try:
        yield executor
    except BaseException:
        for trial in executor.take_ended():
            keep(trial)
        raise
    finally:
        executor.close()


# Compilations of a shortlist that may be under way: enough for 16 cores, and fixed, so that the
# same seed makes the same proposals everywhere.
AHEAD = 16
# So many are begun together, before the first trial: of all `AHEAD` most would be chosen before
# anything is known of this workload, and the first trials choose among them.
TOGETHER = 8


class PrecompilingSearcher:
    """Ask one searcher for configs and tell it what came of them.

    A `StaticFeatureAware` searcher names more configs than it asks for. They are compiled, and it
    learns what the compiler says of each once `AHEAD` later ones are being compiled: nobody waits,
    unless compiling takes longer than measuring. `waited` is then told since when.
    """

    def __init__(
        self,
        searcher: Searcher,
        evaluator: Evaluator,
        workload: Workload,
        waited: Callable[[Workload, float], None] = lambda workload, since_s: None,
    ) -> None:
        self.workload, self._waited = workload, waited
        self._searcher, self._evaluator = searcher, evaluator
        # Asked once: that of every searcher about every trial takes long.
        self._learner = searcher if isinstance(searcher, TransferLearning) else None
        self._compiling: deque[Pending] = deque()
        # Proposals whose part of the shortlist is being compiled already.
        self._early = 0
        self._compiled: dict[Config, Pending] = {}
        self._features: dict[Config, Features] = {}
        self._refused: list[Trial] = []

    def begin(self) -> None:
        """Begin compiling what the first trials choose from: they do not wait for two at a time."""
        searcher = self._searcher
        if isinstance(searcher, StaticFeatureAware):
            while len(self._compiling) < TOGETHER and self._compile_more(searcher):
                self._early += 1

    def next(self) -> Pending | None:
        """Propose a config, its compilation begun; None when the searcher has none left."""
        searcher = self._searcher
        if isinstance(searcher, StaticFeatureAware):
            if self._early:
                self._early -= 1
            else:
                self._compile_more(searcher)
            while len(self._compiling) > AHEAD:
                self._foresee_next(searcher)
        while not (configs := searcher.ask(1)):
            if not self._compiling or not isinstance(searcher, StaticFeatureAware):
                return None
            self._foresee_next(searcher)
        (config,) = configs
        return self._compiled.pop(config, None) or self._evaluator.start(self.workload, config)

    def take_refused(self) -> list[Trial]:
        """Take the trials of configs that were compiled ahead and can't run; they are told."""
        taken, self._refused = self._refused, []
        return taken

    def tell(self, trial: Trial) -> None:
        self._searcher.tell(trial)

    @property
    def learns_from_others(self) -> bool:
        return self._learner is not None

    def share(self, trial: Trial, features: Features | None) -> None:
        """Pass on a trial of another workload, if the searcher has a use for it."""
        if self._learner is not None:
            self._learner.share(trial, features)

    def features(self, config: Config) -> Features | None:
        return self._features.get(config)

    def expected_gain(self) -> float | None:
        """Return the share of the best time that may still be saved, None where nobody knows."""
        return None if self._learner is None else self._learner.expected_gain()

    def close(self) -> None:
        """Give up what is being compiled and was not asked for."""
        for pending in self._compiling:
            if pending.compilation is not None:
                pending.compilation.cancel()

    def _compile_more(self, searcher: StaticFeatureAware) -> bool:
        """Begin compiling a proposal's part of the shortlist; False where it has ended."""
        named = searcher.shortlist(1)
        self._compiling += [self._evaluator.start(self.workload, config) for config in named]
        return bool(named)

    def _foresee_next(self, searcher: StaticFeatureAware) -> None:
        pending = self._compiling.popleft()
        began_s = time.monotonic()
        seen = self._evaluator.foresee(pending)
        self._waited(self.workload, began_s)
        if isinstance(seen, Trial):
            self._searcher.tell(seen)
            self._refused.append(seen)
        else:
            self._compiled[pending.config] = pending
            self._features[pending.config] = seen
            searcher.foresee(pending.config, seen)
