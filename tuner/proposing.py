"""What a searcher proposes for one workload, compiled ahead where it chooses among the compiled."""

from __future__ import annotations

from collections import deque

from tuner.evaluate import Evaluator, Pending
from tuner.kernel import Workload
from tuner.search.base import Features, Foreseeing, Hopeful, Searcher, Sharing
from tuner.space import Config
from tuner.trial import Trial

# Compilations of a shortlist that may be under way: enough for 16 cores, and fixed, so that the
# same seed makes the same proposals everywhere.
AHEAD = 16


class Proposer:
    """Ask one searcher for configs and tell it what came of them.

    A `Foreseeing` searcher names more configs than it asks for. They are compiled, and it learns
    what the compiler says of each once `AHEAD` later ones are being compiled: nobody waits.
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
        if not isinstance(self._searcher, Foreseeing):
            return self._asked()
        for config in self._searcher.shortlist(1):
            self._compiling.append(self._evaluator.start(self.workload, config))
        while len(self._compiling) > AHEAD:
            self._foresee_next(self._searcher)
        while (asked := self._asked()) is None and self._compiling:
            self._foresee_next(self._searcher)
        return asked

    def refused(self) -> list[Trial]:
        """Take the trials of configs that were compiled ahead and can't run; they are told."""
        taken, self._refused = self._refused, []
        return taken

    def tell(self, trial: Trial) -> None:
        """Pass a finished trial on to the searcher."""
        self._searcher.tell(trial)

    def share(self, trial: Trial, features: Features | None) -> None:
        """Pass on a trial of another workload, if the searcher has a use for it."""
        if isinstance(self._searcher, Sharing):
            self._searcher.share(trial, features)

    def features(self, config: Config) -> Features | None:
        """Return what was known of a config before it ran."""
        return self._features.get(config)

    def expected_gain(self) -> float | None:
        """Return the share of the best time that may still be saved, None where nobody knows."""
        return self._searcher.expected_gain() if isinstance(self._searcher, Hopeful) else None

    def close(self) -> None:
        """Give up what is being compiled and was not asked for."""
        for pending in self._compiling:
            if pending.compilation is not None:
                pending.compilation.cancel()

    def _asked(self) -> Pending | None:
        configs = self._searcher.ask(1)
        if not configs:
            return None
        (config,) = configs
        return self._compiled.pop(config, None) or self._evaluator.start(self.workload, config)

    def _foresee_next(self, searcher: Foreseeing) -> None:
        pending = self._compiling.popleft()
        seen = self._evaluator.foresee(pending)
        if isinstance(seen, Trial):
            self._searcher.tell(seen)
            self._refused.append(seen)
            return
        self._compiled[pending.config] = pending
        self._features[pending.config] = seen
        searcher.foresee(pending.config, seen)
