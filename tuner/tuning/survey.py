"""The survey of a recording: measure the best configs of each workload on all the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tuner.model.config import Config
from tuner.model.errors import OutOfMemory
from tuner.model.kernel import Workload
from tuner.model.trial import Trial
from tuner.search.pool import Pool
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Evaluator
from tuner.tuning.executor import DEPTH, TrialExecutor, executing
from tuner.tuning.lanes import lane_of
from tuner.tuning.progress import ProgressTracker
from tuner.tuning.undecided import Undecided

# Of each workload's configs, so many of the fastest are measured on all the others: what a
# dispatch chooses among has to be known everywhere.
SURVEYED_BEST = 3


@dataclass(slots=True)
class Survey:
    """Fill up every workload to `surveyed` configs: the others' fastest, then random ones."""

    plan: Plan
    session: Session
    evaluator: Evaluator
    progress: ProgressTracker
    pools: Mapping[Workload, Pool]
    undecided: Undecided

    def run(self) -> None:
        """Measure what is missing, compiling ahead of the device; each lane has its workloads."""
        name, tuned = self.plan.candidate, self.plan.tuned
        ranked = [self.session.fastest(name, workload)[:SURVEYED_BEST] for workload in tuned]
        best = list(dict.fromkeys(trial.config for trials in ranked for trial in trials))
        lanes = {workload: lane_of(self.evaluator.device, workload) for workload in tuned}
        waiting = {
            lane: self._missing([w for w in tuned if lanes[w] == lane], best)
            for lane in dict.fromkeys(lanes.values())
        }
        with executing(self.evaluator, self._keep, lanes.__getitem__) as executor:
            depth = max(DEPTH, self.evaluator.device.info.parallel)
            while True:
                for lane, missing in waiting.items():
                    for workload, config in islice(missing, depth - executor.under_way(lane)):
                        executor.begin(self.evaluator.start(workload, config))
                if not len(executor):
                    break
                self._take(executor)

    def _missing(
        self, workloads: Sequence[Workload], best: Sequence[Config]
    ) -> Iterator[tuple[Workload, Config]]:
        for workload in workloads:
            if workload in self.undecided:
                continue
            pool = self.pools[workload]
            known = {t.config for t in self.session.trials(self.plan.candidate, workload)}
            others = [c for c in best if c in pool and c not in known]
            left = max(0, min(self.plan.config.surveyed or 0, len(pool)) - len(known) - len(others))
            order = np.random.default_rng(self.plan.config.seed).permutation(len(pool))
            shuffled = (pool[int(index)] for index in order)
            drawn = (c for c in shuffled if c not in known and c not in others)
            wanted = [*others, *islice(drawn, left)]
            self.progress.expect_more(workload, len(wanted))
            for config in wanted:
                if workload not in self.undecided:
                    yield workload, config

    def _take(self, executor: TrialExecutor) -> None:
        try:
            self._keep(executor.take())
        except OutOfMemory as error:
            (workload,) = (one for one in self.plan.tuned if one.key == error.workload)
            self.undecided.give_up(workload, error, self.plan.candidate)

    def _keep(self, trial: Trial) -> None:
        self.session.record(trial)
        self.progress.count(trial, measured=True)
