"""Search the configs of a kernel on a bench: each is compiled, judged and timed."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

import numpy as np

from tuner.extensions.compat.bench import CALL, ArrayBench, ConfiguredKernel, MeasuredConfig
from tuner.model.config import Config, SearchSpace
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.search.factory import make_searcher
from tuner.search.pool import Pool

# How far two right configs may be apart, relative to the largest number of the array: sums in
# another order, and of 8 bits one code. Whole numbers are equal.
APART = {
    "float8_e5m2": 0.25,
    "float8_e4m3fn": 0.125,
    "bfloat16": 4e-2,
    "float16": 1e-2,
    "float32": 1e-4,
    "float64": 1e-9,
}


@dataclass(frozen=True, slots=True)
class Judge:
    """Say what is wrong with a kernel's outputs.

    `expected` has an array for each argument that is compared, None for the others. With
    `is_answer` it is the caller's, compared as `numpy.allclose` does with `atol`, or by `verify`;
    else it is another config's. `verify=False` compares nothing. `dtypes` are those of arrays that
    are held in a wider one.
    """

    expected: Sequence[Any]
    atol: float = 1e-6
    verify: Callable[..., Any] | Literal[False] | None = None
    is_answer: bool = True
    dtypes: Sequence[str] = ()

    def fault(self, outputs: Sequence[Any]) -> str:
        """Describe the first difference, "" where there is none."""
        if self.verify is False:
            return ""
        pairs = list(zip(self.expected, outputs, strict=True))
        if self.verify is not None:
            found = [None if answer is None else values for answer, values in pairs]
            asked = {"atol": self.atol} if _takes_atol(self.verify) else {}
            return "" if self.verify(self.expected, found, **asked) else "`verify` refuses it"
        for place, (answer, values) in enumerate(pairs):
            if answer is None:
                continue
            dtype = self.dtypes[place] if self.dtypes else values.dtype.name
            if text := self._difference(np.asarray(answer), values, dtype):
                whose = "" if self.is_answer else ", unlike the first config"
                return f"argument {place}: {text}{whose}"
        return ""

    def _difference(self, answer: Any, values: Any, dtype: str) -> str:
        if answer.shape != values.shape and answer.size != values.size:
            return f"the answer has the shape {answer.shape}, and it {values.shape}"
        wide = np.float64 if values.dtype.kind in "fV" else values.dtype
        wanted, found = answer.reshape(-1).astype(wide), values.reshape(-1).astype(wide)
        if self.is_answer:
            right = np.isclose(found, wanted, atol=self.atol)
        elif dtype in APART:
            share = APART[dtype]
            finite = np.abs(wanted[np.isfinite(wanted)])
            largest = float(finite.max(initial=0.0))
            right = np.isclose(found, wanted, rtol=share, atol=share * largest, equal_nan=True)
        else:
            right = found == wanted
        if right.all():
            return ""
        first = int(np.argmin(right))
        count = int(right.size - right.sum())
        return f"[{first}] is {found[first]}, expected {wanted[first]} ({count} elements differ)"


def _takes_atol(verify: Callable[..., Any]) -> bool:
    try:
        taken = inspect.signature(verify).parameters
    except ValueError:
        return False
    return "atol" in taken or any(one.kind is one.VAR_KEYWORD for one in taken.values())


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
                most = self.bench.info.limits.threads_per_block
                fits = instance is not None and instance.launch.threads <= most
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
                tried_config = TriedConfig(config, measured, ask_s / len(batch), known)
                tell(tried_config)
                yield tried_config

    def _judge_outputs(self, measured: MeasuredConfig) -> MeasuredConfig:
        if measured.status is not Status.CORRECT:
            return replace(measured, outputs=())
        judge = self._judge
        if judge is None:
            # The first config's outputs are what those of the others are compared with.
            written = self.bench.written
            first = [v if place in written else None for place, v in enumerate(measured.outputs[0])]
            verify: Literal[False] | None = False if self.verify is False else None
            judge = Judge(first, self.atol, verify, is_answer=False)
        fault = next(filter(None, map(judge.fault, measured.outputs)), "")
        if fault:
            fault += "" if self.answer is not None else f": {REMEDY}"
            return replace(measured, status=Status.INCORRECT, reason=fault, outputs=())
        self._judge = judge
        return replace(measured, outputs=())

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

        def tell(config: TriedConfig) -> None:
            of = config.measured
            chosen.tell(
                Trial(
                    INITIAL, CALL, config.config, of.status, of.reason, measurement=of.measurement
                )
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
    failed = [trial for trial in tried if trial.time_us is None]
    kinds = dict.fromkeys(config.measured.status for config in failed)
    for status in kinds:
        of = [config for config in failed if config.measured.status is status]
        LOG.warning(
            "%d of %d configs: %s; %s: %s",
            *(len(of), len(tried), status, of[0].config, of[0].measured.reason[:500]),
        )
