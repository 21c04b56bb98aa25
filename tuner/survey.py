"""Measure more than a search needs, so that a recording answers for other searches too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import numpy as np

from tuner.evaluate import Evaluator
from tuner.kernel import Workload
from tuner.pipeline import DEPTH, Pipeline, prompt_threads
from tuner.plan import Plan
from tuner.search.pool import Pool
from tuner.session import Session
from tuner.space import Config
from tuner.standing import Standing

# Of each workload's configs, so many of the fastest are measured on all the others: what a
# dispatch chooses among has to be known everywhere.
BEST = 3


class Survey:
    """Fill up every workload of a searched candidate to `plan.surveyed` measured configs.

    First what is fastest on the other workloads, then random configs, the same on all of them as
    far as they are valid. What the session holds is not measured again.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        evaluator: Evaluator,
        standing: Standing,
        pools: Mapping[Workload, Pool],
    ) -> None:
        self._plan, self._session = plan, session
        self._evaluator, self._standing = evaluator, standing
        self._pools, self._configs = pools, plan.surveyed or 0

    def run(self) -> None:
        """Measure what is missing, compiling ahead of the device."""
        pipeline = Pipeline(self._evaluator)
        with ExitStack() as stack:
            stack.enter_context(prompt_threads())
            stack.callback(pipeline.close)
            try:
                for workload, config in self._missing():
                    if len(pipeline) >= DEPTH:
                        self._keep(pipeline)
                    pipeline.begin(self._evaluator.start(workload, config))
                while len(pipeline):
                    self._keep(pipeline)
            except BaseException:
                for trial in pipeline.finished():
                    self._session.record(trial)
                raise

    def _missing(self) -> Iterator[tuple[Workload, Config]]:
        best = self._best()
        for workload in self._plan.tuned:
            pool, name = self._pools[workload], self._plan.candidate
            known = {trial.config for trial in self._session.trials(name, workload)}
            others = [c for c in best if c in pool and c not in known]
            left = max(0, min(self._configs, len(pool)) - len(known) - len(others))
            drawn = (c for c in self._shuffled(pool) if c not in known and c not in others)
            wanted = [*others, *(config for config, _ in zip(drawn, range(left), strict=False))]
            self._standing.expect_more(workload, len(wanted))
            yield from ((workload, config) for config in wanted)

    def _best(self) -> list[Config]:
        found: dict[Config, None] = {}
        for workload in self._plan.tuned:
            trials = self._session.trials(self._plan.candidate, workload)
            timed = sorted((t.time_us, n, t) for n, t in enumerate(trials) if t.time_us is not None)
            found |= dict.fromkeys(trial.config for _, _, trial in timed[:BEST])
        return list(found)

    def _shuffled(self, pool: Pool) -> Iterator[Config]:
        order = np.random.default_rng(self._plan.seed).permutation(len(pool))
        return (pool[int(index)] for index in order)

    def _keep(self, pipeline: Pipeline) -> None:
        trial = pipeline.take()
        self._session.record(trial)
        self._standing.count(trial, measured=True)
