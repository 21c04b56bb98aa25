"""The finals: the best configs against the baseline, verified again and timed in alternation."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from tuner.device.base import Device
from tuner.evaluate import Evaluator
from tuner.kernel import Workload
from tuner.plan import CANDIDATE, Plan, distance
from tuner.session import Session
from tuner.space import Config
from tuner.statistics import paired_interval, roofline_share, unpaired_interval
from tuner.trial import Comparison, Result, Status, Trial

RoundTimes = tuple[tuple[float, ...], ...]

# One in this many rounds chooses among several finalists; the others report.
CHOOSING_SHARE = 4


class Finals:
    """Decide each workload of one plan; what the session holds already stands."""

    def __init__(self, plan: Plan, session: Session, device: Device, evaluator: Evaluator) -> None:
        self._plan, self._session = plan, session
        self._device, self._evaluator = device, evaluator

    def decide(self, workload: Workload) -> None:
        """Compare the best configs with the baseline, interleaved, and record the result."""
        if any(result.workload == workload for result in self._session.results()):
            return
        finalists = self._verified(workload, self._finalists(workload))
        if not finalists:
            return
        comparison = self._compare(workload, [trial.config for trial in finalists])
        self._session.record_comparison(comparison)
        compared = [trial for trial in finalists if trial.config in comparison.finalists]
        result = self._result(comparison, compared)
        source = self._evaluator.render(workload, result.config).source
        self._session.write_variant(workload, result.config, source)
        # Last: a resumed run takes a result for the end of this step.
        self._session.record_result(result)

    def _finalists(self, workload: Workload) -> list[Config]:
        if workload.held_out:
            return self._inherited(workload)
        trials = self._session.trials(CANDIDATE, workload)
        timed = [
            trial
            for trial in trials
            if trial.time_us is not None
            and trial.measurement is not None
            and not trial.measurement.stopped_early
        ]
        timed.sort(key=lambda trial: trial.time_us or 0.0)
        return [trial.config for trial in timed[: self._plan.finalists]]

    def _inherited(self, workload: Workload) -> list[Config]:
        """A held-out workload gets what won on the nearest tuned one: nothing is tuned for it."""
        results = [result for result in self._session.results() if not result.workload.held_out]
        results.sort(key=lambda result: distance(workload, result.workload))
        names = self._evaluator.names(workload)
        valid = [r.config for r in results if not self._plan.space.violated(r.config, names)]
        return valid[:1]

    def _verified(self, workload: Workload, configs: Iterable[Config]) -> list[Trial]:
        """Run every finalist once more with all checks; keep those that pass."""
        passed = []
        for config in configs:
            trial = self._session.trial(CANDIDATE, workload, config, stage="finals")
            if trial is None:
                pending = self._evaluator.start(workload, config)
                trial = self._evaluator.finish(pending, stage="finals")
                self._session.record(trial)
            if trial.status is Status.CORRECT:
                passed.append(trial)
        return passed

    def _compare(self, workload: Workload, configs: list[Config]) -> Comparison:
        """Time finalists and baseline interleaved, or as many of them as a recording has so."""
        rounds = self._plan.rounds
        baseline = self._evaluator.baseline_program(workload)
        programs = {config: self._evaluator.program(workload, config) for config in configs}
        compared = self._device.compare([baseline, *programs.values()], rounds=rounds)
        if not compared.paired and len(programs) > 1:
            programs = {
                config: program
                for config, program in programs.items()
                if self._device.compare([baseline, program], rounds=rounds).paired
            } or dict(list(programs.items())[:1])
            compared = self._device.compare([baseline, *programs.values()], rounds=rounds)
        return Comparison(
            workload, tuple(programs), compared.times_us, compared.paired, compared.isolated_us
        )

    def _result(self, comparison: Comparison, finalists: list[Trial]) -> Result:
        """Choose on the first rounds, report on the others: a choice must not judge itself."""
        choosing, reporting = _split(comparison.rounds, len(finalists))
        medians = [median(column) for column in zip(*choosing, strict=True)]
        winner = min(range(len(finalists)), key=lambda k: medians[k + 1])
        baseline_us = [row[0] for row in reporting]
        tuned_us = [row[winner + 1] for row in reporting]
        interval = paired_interval if comparison.paired else unpaired_interval
        speedup, bounds = interval(baseline_us, tuned_us, self._plan.seed)
        workload, trial = comparison.workload, finalists[winner]
        traffic = self._plan.spec.traffic.integer(workload.values)
        middle_us = median(tuned_us)
        isolated = comparison.isolated_us
        return Result(
            workload=workload,
            baseline_us=median(baseline_us),
            tuned_us=middle_us,
            speedup=speedup,
            interval=bounds,
            paired=comparison.paired,
            roofline_share=roofline_share(traffic, middle_us, self._device.info.streaming_gbps),
            config=trial.config,
            resources=trial.resources,
            occupancy=trial.occupancy,
            baseline_wins=bounds[1] < 1.0,
            isolated_us=isolated[winner + 1] if isolated else None,
            isolated_baseline_us=isolated[0] if isolated else None,
        )


def _split(rounds: RoundTimes, finalists: int) -> tuple[RoundTimes, RoundTimes]:
    """Keep the rounds that choose apart from those that report; one finalist needs no choice."""
    count = len(rounds) // CHOOSING_SHARE
    return (rounds[:count], rounds[count:]) if count and finalists > 1 else (rounds, rounds)
