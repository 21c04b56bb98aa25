"""Further checks of configs that may win: boundary workloads, and tools that watch every access."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product

from tuner.device.base import Device, Outcome, Watcher
from tuner.evaluate import Evaluator
from tuner.kernel import Workload
from tuner.plan import Plan
from tuner.session import Session
from tuner.space import Config
from tuner.trial import Check, Status

VERIFY, BOUNDARY, COMPARE = "verify", "boundary", "compare"
# What says nothing of a kernel: the config is not for this workload, or cannot be had here.
_NOT_RUN = frozenset({Status.CONSTRAINT, Status.LIMIT, Status.COMPILE, Status.MISSING})

Pair = tuple[Workload, Config]


@dataclass(frozen=True, slots=True)
class Watch:
    """A tool, the evaluator that compiles for it, and the largest arrays that it is given."""

    watcher: Watcher
    evaluator: Evaluator
    largest_bytes: int


class Verification:
    """Check configs of one plan and keep the verdicts in its session.

    A config that fails anywhere is out everywhere. What the session holds already is not run
    again, unless `repeat` asks for it; a workload over `largest_bytes` is not run at all.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        device: Device,
        evaluator: Evaluator,
        watches: Sequence[Watch] = (),
        *,
        repeat: bool = False,
        largest_bytes: int | None = None,
    ) -> None:
        self._plan, self._session = plan, session
        self._device, self._evaluator, self._watches = device, evaluator, watches
        self._largest_bytes = largest_bytes
        known = () if repeat else session.checks()
        self._known = {(check.kind, check.workload, check.config) for check in known}
        self._failed = {check.config for check in known if check.passed is False}
        self.made: list[Check] = []

    def failed(self, config: Config) -> bool:
        """Tell whether a config has failed a check."""
        return config in self._failed

    def verify(self, pairs: Iterable[Pair], kind: str = VERIFY) -> None:
        """Verify configs with every fill and twice, untimed; a recording can't."""
        if self._device.info.recorded:
            return
        wanted = []
        for pair in dict.fromkeys(pairs):
            if self._too_large(pair[0]):
                self._keep(kind, *pair, Outcome(Status.MISSING, "too large to be run on a CPU"))
            elif (kind, *pair) not in self._known:
                wanted.append(pair)
        under_way = [(pair, self._evaluator.start(*pair)) for pair in wanted]
        for (workload, config), pending in under_way:
            self._keep(kind, workload, config, self._evaluator.verify(pending))

    def on_boundaries(self, configs: Iterable[Config]) -> None:
        """Verify configs on every boundary workload that they may run on."""
        self.verify(((w, c) for c, w in product(configs, self._plan.spec.boundary)), BOUNDARY)

    def watch(self, pairs: Iterable[Pair]) -> None:
        """Run configs under every tool, on their own and on the boundary workloads."""
        wanted = dict.fromkeys(pairs)
        configs = dict.fromkeys(config for _, config in wanted)
        on_boundaries = ((w, c) for c, w in product(configs, self._plan.spec.boundary))
        wanted |= dict.fromkeys(on_boundaries)
        for watch in self._watches:
            self._watch(watch, wanted)

    def _too_large(self, workload: Workload) -> bool:
        most = self._largest_bytes
        return most is not None and self._plan.spec.footprint_bytes(workload) > most

    def _watch(self, watch: Watch, pairs: Iterable[Pair]) -> None:
        kind, evaluator = watch.watcher.kind, watch.evaluator
        size = self._plan.spec.footprint_bytes
        fitting = [
            pair
            for pair in pairs
            if (kind, *pair) not in self._known and size(pair[0]) <= watch.largest_bytes
        ]
        under_way = [(pair, evaluator.start(*pair)) for pair in fitting]
        ready = [(pair, evaluator.ready(pending)) for pair, pending in under_way]
        jobs = [(pair, made) for pair, made in ready if not isinstance(made, Outcome)]
        outcomes = watch.watcher.watch([program for _, program in jobs]) if jobs else ()
        for ((workload, config), _), outcome in zip(jobs, outcomes, strict=True):
            self._keep(kind, workload, config, outcome)

    def fail(self, kind: str, workload: Workload, config: Config, reason: str) -> None:
        """Note that a config was found wrong elsewhere."""
        self._keep(kind, workload, config, Outcome(Status.WRONG, reason))

    def _keep(self, kind: str, workload: Workload, config: Config, outcome: Outcome) -> None:
        if outcome.status in (Status.CONSTRAINT, Status.LIMIT):
            return
        passed = None if outcome.status in _NOT_RUN else outcome.status is Status.CORRECT
        reason = self._evaluator.in_template(workload, config, outcome.reason)
        if passed is False and outcome.status is not Status.WRONG:
            reason = f"{outcome.status}: {reason}"
        created = datetime.now(UTC).isoformat(timespec="seconds")
        name = self._device.info.name
        check = Check(kind, workload, config, passed, reason, name, created)
        self._session.record_check(check)
        self._known.add((kind, workload, config))
        self.made.append(check)
        if passed is False:
            self._failed.add(config)
