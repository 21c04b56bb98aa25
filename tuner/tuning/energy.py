"""The energy stage: after a search by time, what its best configs cost in energy."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tuner.device.base import Device, Outcome
from tuner.model.energy import Account, accounts
from tuner.model.errors import InputError, KernelError
from tuner.model.kernel import Workload
from tuner.model.settings import Objective
from tuner.model.trial import Energy, EnergyKind, EnergyWindow, Trial, Variant
from tuner.space.plan import Plan
from tuner.tuning.device_queues import serve_queue_of
from tuner.tuning.run import Run

# Configs measured on each workload at most.
MOST_CONFIGS = 8
# No config is taken to draw less power, above idle, than this share under the least one seen on
# its workload. One that is 1 / (1 - 0.25) times slower than a config can then not cost less; the
# search itself stops to time what is 1.3 times slower than its best.
POWER_MARGIN = 0.25


def next_config(timed: Sequence[Trial], account: Account, objective: Objective) -> Trial | None:
    """Choose the next config to measure; None where none can win or enough are measured.

    `timed` is ordered by time. The first half are the fastest; the others are, of those that can
    still win, the most unlike those measured, for the fastest few are often all but the same.
    """
    measured = [each.variant for each in account.variants if each.variant is not None]
    new = (trial for trial in timed if trial.variant not in measured)
    left = [trial for trial in new if can_win(trial, account, objective)]
    if not left or len(measured) >= MOST_CONFIGS:
        return None
    if len(measured) < MOST_CONFIGS // 2:
        return left[0]
    # max keeps the first of equals, which is the fastest
    return max(left, key=lambda trial: min(unlike(trial.variant, one) for one in measured))


def can_win(trial: Trial, account: Account, objective: Objective) -> bool:
    """Tell whether a config could cost less than the best so far, if it drew the least power."""
    if not account.variants or trial.time_us is None:
        return True
    least_w = min(program.net_w for program in account.programs) * (1.0 - POWER_MARGIN)
    least = least_w * trial.time_us * 1e-3
    if objective == "edp":
        least *= trial.time_us
    return least < min(variant.cost(objective) for variant in account.variants)


def unlike(a: Variant, b: Variant) -> int:
    """Count the parameters in which two variants differ; those of two candidates differ in all."""
    if a.candidate != b.candidate:
        return 1 + max(len(a.config), len(b.config))
    return sum(value != b.config[name] for name, value in a.config.items())


# Shorter windows mistake the counter's ticks, of up to 100 ms, for differences.
WINDOW_S = 5.0
# What a window takes in all: to settle, to wait for ticks, to judge the results afterwards.
WINDOW_COST_S, IDLE_COST_S = 7.0, 8.2
# A run whose time is limited keeps enough of it to measure so many configs on each workload.
FEWEST_CONFIGS = 2
# And of that time the search gets at least this share.
SEARCH_SHARE = 0.2
# The best and the baseline are measured once more, at the end: that tells how far windows differ.
REPEATS = 2
# A call takes as long in a window as when it was timed. One that is so much faster skipped work:
# in a window, the last replay's results are still there.
SKIPPED_SHARE = 0.7


@dataclass(slots=True)
class EnergyStage:
    """Measure the energy, above idle, of what can still win; what the session holds stands."""

    run: Run
    meter: Device
    _left_s: float = 0.0

    def measure(self) -> Mapping[Workload, tuple[Variant, ...]]:
        """Return the measured variants of every tuned workload, those of the least cost first."""
        tuned, skipped, tracker = self.run.plan.tuned, self.run.skipped, self.run.tracker
        waiting = [one for one in tuned if one not in skipped and not self._is_measured(one)]
        self._left_s = sum(map(self._cost_s, waiting))
        if waiting:
            minutes, several = self._left_s / 60, "s" if len(waiting) > 1 else ""
            note = (
                f"measuring the energy of at most {MOST_CONFIGS} configs on each of "
                f"{len(waiting)} workload{several}, {WINDOW_S:g} s each: up to {minutes:.0f} min"
            )
            tracker.announce("energy", None, note, remaining_s=self._left_s)
        for index, workload in enumerate(waiting):
            serve_queue_of(self.meter, workload)
            left_s = tracker.left_s()
            share_s = math.inf if left_s is None else left_s / (len(waiting) - index)
            with skipped.unless_memory_ends(workload):
                self._measure(workload, share_s)
            self._left_s = sum(map(self._cost_s, waiting[index + 1 :]))
            tracker.announce("energy", workload, self._note(workload), remaining_s=self._left_s)
        return {workload: self._ranking(workload) for workload in tuned}

    def _measure(self, workload: Workload, share_s: float) -> None:
        """Measure idle, baseline, configs, the best and the baseline again, and idle again."""
        deadline_s = time.monotonic() + share_s - REPEATS * WINDOW_COST_S - IDLE_COST_S
        if not self._list_fastest(workload):
            return
        self._take_idle(workload)
        if not self._windows(workload, None):
            self._take_baseline(workload)
        while not (account := self._account(workload)).variants or time.monotonic() < deadline_s:
            trial = next_config(
                self._list_fastest(workload), account, self.run.plan.config.objective
            )
            if trial is None:
                break
            self._take(workload, trial)
        for _ in range(REPEATS):
            ranking = self._ranking(workload)
            if not ranking or self._windows(workload, ranking[0]) > 1:
                break
            best = self.run.session.trial(ranking[0].candidate, workload, ranking[0].config)
            if best is not None:
                self._take(workload, best)
        if self._windows(workload, None) < REPEATS:
            self._take_baseline(workload)
        self._take_idle(workload)

    def _list_fastest(self, workload: Workload) -> list[Trial]:
        timed = self.run.session.fastest(workload=workload, full=True)
        return [trial for trial in timed if not self.run.verification.failed(trial.variant)]

    def _take(self, workload: Workload, trial: Trial) -> None:
        program = self.run.candidates.evaluator(trial.candidate).program(workload, trial.config)
        found = self.meter.energy(program, seconds=WINDOW_S)
        if isinstance(found, Outcome):
            reason = f"{found.status}: {found.reason}"
            self.run.verification.fail("energy", workload, trial.variant, reason)
        elif (
            found.cold and trial.time_us and found.time_us
        ) and found.time_us < SKIPPED_SHARE * trial.time_us:
            reason = (
                f"a call takes {found.time_us:.3g} us when it is repeated over its own results, "
                f"{trial.time_us:.3g} us otherwise: it skips work"
            )
            self.run.verification.fail("energy", workload, trial.variant, reason)
        else:
            self._keep(workload, "variant", found, trial.variant)
        self._spend(workload, WINDOW_COST_S)

    def _take_baseline(self, workload: Workload) -> None:
        evaluator = self.run.candidates.evaluator(self.run.plan.candidate)
        found = self.meter.energy(evaluator.baseline_program(workload), seconds=WINDOW_S)
        if isinstance(found, Outcome):
            raise KernelError(
                f"the baseline fails on {workload} when it is repeated for {WINDOW_S:g} s: "
                f"{found.status}: {found.reason}",
                path=self.run.plan.spec.source,
            )
        self._keep(workload, "baseline", found)
        self._spend(workload, WINDOW_COST_S)

    def _take_idle(self, workload: Workload) -> None:
        self._keep(workload, "idle", self.meter.idle_energy(seconds=WINDOW_S))
        self._spend(workload, IDLE_COST_S)

    def _keep(
        self,
        workload: Workload,
        kind: EnergyKind,
        window: EnergyWindow,
        variant: Variant | None = None,
    ) -> None:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        self.run.session.append(Energy(workload, kind, window, variant, created))

    def _spend(self, workload: Workload, seconds: float) -> None:
        self._left_s = max(0.0, self._left_s - seconds)
        self.run.tracker.announce("energy", workload, remaining_s=self._left_s)

    def _cost_s(self, workload: Workload) -> float:
        configs = min(MOST_CONFIGS, len(self._list_fastest(workload)))
        return most_seconds(configs) if configs else 0.0

    def _is_measured(self, workload: Workload) -> bool:
        ends_idle = [energy.kind == "idle" for energy in self.run.session.energies(workload)][-1:]
        return ends_idle == [True] and self._windows(workload, None) >= REPEATS

    def _account(self, workload: Workload) -> Account:
        found = accounts(self.run.session.energies(workload))
        return found.get(workload) or Account(workload, (), None, ())

    def _windows(self, workload: Workload, variant: Variant | None) -> int:
        consumption = self._account(workload).of(variant)
        return 0 if consumption is None else len(consumption.windows)

    def _ranking(self, workload: Workload) -> tuple[Variant, ...]:
        ranked = self._account(workload).ranked(self.run.plan.config.objective)
        variants = (consumption.variant for consumption in ranked)
        return tuple(v for v in variants if v is not None and not self.run.verification.failed(v))

    def _note(self, workload: Workload) -> str:
        account, ranking = self._account(workload), self._ranking(workload)
        best = account.of(ranking[0]) if ranking else None
        if best is None or account.baseline is None:
            return f"{workload}: no config to measure the energy of"
        return (
            f"{workload}: {best.net_mj:.3g} mJ a call above idle, the baseline "
            f"{account.baseline.net_mj:.3g} mJ; {len(account.variants)} configs measured"
        )


def most_seconds(configs: int = MOST_CONFIGS) -> float:
    """Estimate how long the stage takes for one workload with so many configs."""
    return (configs + 2 * REPEATS - 1) * WINDOW_COST_S + 2 * IDLE_COST_S


def reserved_s(plan: Plan) -> float:
    """Say how much of a run's time the search must leave for the stage."""
    by_time = plan.config.objective == "time"
    return 0.0 if by_time else len(plan.tuned) * most_seconds(FEWEST_CONFIGS)


def require_time(plan: Plan) -> None:
    """Raise `InputError` where what the stage needs leaves the search too little of the time."""
    least_s = reserved_s(plan) / (1.0 - SEARCH_SHARE)
    if plan.config.time_s is not None and plan.config.time_s < least_s:
        workloads, objective = len(plan.tuned), plan.config.objective
        raise InputError(
            f"--time {plan.config.time_s:g}s is too short for --objective {objective} on "
            f"{workloads} workload{'s' if workloads > 1 else ''}",
            remedy=f"allow at least {math.ceil(least_s)}s, or choose fewer with --workload",
        )
