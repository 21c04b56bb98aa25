"""Search the configs of a kernel on a bench: each is compiled, judged and timed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from tuner.extensions.compat.bench import CALL, ArrayBench, ConfiguredKernel, MeasuredConfig
from tuner.extensions.compat.judging import Judge
from tuner.model.config import Config, SearchSpace
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.search.factory import make_searcher
from tuner.search.pool import Pool

LOG = logging.getLogger("tuner.compat")
# Configs that are compiled together, before the first of them is timed.
AHEAD = 4
IN_ORDER = "in order"
# Where a config differs from the first one.
REMEDY = "pass an `answer`, or verify=False where parameters change what is computed"
# At last the best ones meet the first config in so many rounds, of which this share has to be won.
FINALISTS, ROUNDS, WINS = 3, 15, 0.8


@dataclass(frozen=True, slots=True)
class Budget:
    """How many configs are tried at most, and how long."""

    trials: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TriedConfig:
    """A config with what became of it, and the seconds of its proposal and its compilation."""

    config: Config
    measured: MeasuredConfig
    ask_s: float = 0.0
    known: Mapping[str, Any] | None = None

    @property
    def time_us(self) -> float | None:
        if self.measured.status is not Status.CORRECT or self.measured.measurement is None:
            return None
        return self.measured.measurement.median_us


@dataclass
class Tuning:
    """Try the configs of a pool; what is known of one by `recall` is not measured again.

    Without an `answer` every config has to leave what the first one that runs leaves.
    """

    bench: ArrayBench
    space: SearchSpace
    pool: Pool
    instance: Callable[[Config], ConfiguredKernel]
    answer: Sequence[Any] | None = None
    atol: float = 1e-6
    verify: Callable[..., Any] | Literal[False] | None = None
    recall: Callable[[Config], Mapping[str, Any] | None] = lambda config: None
    _judge: Judge | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.answer is not None:
            self._judge = Judge(self.answer, self.atol, self.verify)

    def run(
        self, searcher: str, budget: Budget, seed: int = 0, first: Config | None = None
    ) -> Iterator[TriedConfig]:
        """Yield each config as soon as it is decided; `first` comes first."""
        began_s = time.monotonic()
        for batch, tell, ask_s in self._ask(searcher, budget, seed, first):
            started = []
            for config in batch:
                known = self.recall(config)
                instance = None if known is not None else self.instance(config)
                fits = instance is not None and self._fits(instance)
                pending = self.bench.compile(instance) if instance is not None and fits else None
                started.append((config, known, instance, pending))
            for config, known, instance, pending in started:
                if budget.seconds is not None and time.monotonic() - began_s > budget.seconds:
                    return
                if known is not None:
                    if self._judge is None and self.verify is not False:
                        # What is new is compared with it, so it has to be run once more.
                        self._judge_outputs(self.bench.measure(self.instance(config)))
                    times = tuple(1000 * ms for ms in known["times"])
                    measured = MeasuredConfig(Status.CORRECT, measurement=Measurement(times, 1, 1))
                elif instance is None or pending is None:
                    measured = MeasuredConfig(
                        Status.CONSTRAINT, "more threads than a block may have"
                    )
                else:
                    measured = self._judge_outputs(self.bench.measure(instance, pending))
                made = TriedConfig(config, measured, ask_s / len(batch), known)
                tell(made)
                yield made

    def _fits(self, instance: ConfiguredKernel) -> bool:
        return instance.launch.threads <= self.bench.info.limits.threads_per_block

    def _judge_outputs(self, measured: MeasuredConfig) -> MeasuredConfig:
        if measured.status is not Status.CORRECT:
            return replace(measured, outputs=())
        judge = self._judge or self._like(measured.outputs[0])
        fault = next(filter(None, map(judge.fault, measured.outputs)), "")
        if fault:
            fault += "" if self.answer is not None else f": {REMEDY}"
            return replace(measured, status=Status.INCORRECT, reason=fault, outputs=())
        self._judge = judge
        return replace(measured, outputs=())

    def _like(self, outputs: Sequence[Any]) -> Judge:
        """Make the first config's outputs what those of the others are compared with."""
        written = self.bench.written
        expected = [one if place in written else None for place, one in enumerate(outputs)]
        verify: Literal[False] | None = False if self.verify is False else None
        return Judge(expected, self.atol, verify, is_answer=False)

    def _ask(
        self, searcher: str, budget: Budget, seed: int, first: Config | None
    ) -> Iterator[tuple[Sequence[Config], Callable[[TriedConfig], None], float]]:
        most = min(budget.trials, self.pool.estimated_size)
        if searcher == IN_ORDER:
            most = min(most, len(self.pool))
            for start in range(0, most, AHEAD):
                batch = [self.pool[k] for k in range(start, min(start + AHEAD, most))]
                yield batch, lambda made: None, 0.0
            return
        seeds = () if first is None else (first,)
        chosen = make_searcher(searcher, self.pool, self.space, seed=seed, budget=most, seeds=seeds)

        def tell(made: TriedConfig) -> None:
            of = made.measured
            chosen.tell(
                Trial(INITIAL, CALL, made.config, of.status, of.reason, measurement=of.measurement)
            )

        tried = 0
        while tried < most:
            began_s = time.perf_counter()
            asked = chosen.ask(min(AHEAD, most - tried))
            if not asked:
                return
            tried += len(asked)
            yield asked, tell, time.perf_counter() - began_s


def choose_fastest(rounds: Sequence[Sequence[float]]) -> tuple[int, list[float]]:
    """Choose a column of times taken in turns, and give the medians.

    Only one that is faster in most rounds takes the place of the first: in `WINS` of them, as one
    of two equal ones is by chance in 2 % of all cases.
    """
    medians = [median(column) for column in zip(*rounds, strict=True)]
    wins = [sum(row[place] < row[0] for row in rounds) for place in range(len(medians))]
    better = (
        place
        for place, won in enumerate(wins)
        if won >= WINS * len(rounds) and medians[place] < medians[0]
    )
    return min(better, key=lambda place: medians[place], default=0), medians


def say_failures(tried: Sequence[TriedConfig]) -> None:
    """Warn of configs that gave no time, with one reason for each kind."""
    failed = [one for one in tried if one.time_us is None]
    kinds = dict.fromkeys(one.measured.status for one in failed)
    for status in kinds:
        of = [one for one in failed if one.measured.status is status]
        LOG.warning(
            "%d of %d configs: %s; %s: %s",
            *(len(of), len(tried), status, of[0].config, of[0].measured.reason[:500]),
        )
