"""The tools that use the device or a profiler: `verify`, `measure`, `profile` and `search`."""

from __future__ import annotations

import time
from collections.abc import Callable

from tuner.agent.tools.building import failure
from tuner.agent.tools.drafts import Choice, Draft, require_arguments
from tuner.analysis.base import METRICS
from tuner.device.base import DeviceInfo, Outcome
from tuner.model.hardware import limits_for, occupancy
from tuner.model.kernel import Workload
from tuner.model.trial import Measurement, Status, Trial, fastest
from tuner.search.factory import make_searcher
from tuner.search.pool import valid_configs
from tuner.tuning.executor import DEPTH, PrecompilingSearcher, TrialExecutor
from tuner.tuning.profiling import Profiled, Profiling
from tuner.tuning.search import no_valid_config

# Configs that an answer lists.
BEST = 5
_RUN = frozenset({Status.LAUNCH, Status.TIMEOUT, Status.INCORRECT})


def verified(choice: Choice) -> str:
    """Run a config with every kind of input and say whether its results are right."""
    require_arguments(choice)
    evaluator = choice.draft.evaluator
    outcome = evaluator.verify(evaluator.start(choice.workload, choice.config))
    if outcome.status is not Status.CORRECT:
        return f"{choice}: {_why(choice, outcome.status, outcome.reason)}"
    verdict = outcome.correctness
    if verdict is None or not verdict.input_kinds:
        return f"{choice}: correct"
    errors = ", ".join(f"{name} {error:.3g}" for name, error in verdict.errors)
    text = f"{choice}: correct with the inputs {', '.join(verdict.input_kinds)}"
    return f"{text}\nlargest errors, as shares of what is tolerated: {errors}" if errors else text


def measured(choice: Choice, baseline_us: Callable[[Workload], float], info: DeviceInfo) -> str:
    """Verify and time a config, beside the baseline."""
    trial = _trial(choice)
    if trial.time_us is None or trial.measurement is None:
        return f"{choice}: {_failed(choice, trial)}"
    baseline = baseline_us(choice.workload)
    return (
        f"{choice}: {trial.time_us:.4g} us; the baseline {baseline:.4g} us: "
        f"{baseline / trial.time_us:.3g}x\n{_taken(trial.measurement, info)}"
    )


def profiled(
    choice: Choice, profiling: Profiling, info: DeviceInfo, *, runs: bool
) -> Profiled | str:
    """Profile a config; a text says why that cannot be done. `runs` says that it is run first."""
    trial = _trial(choice) if runs else _untried(choice, info)
    if trial.status not in (Status.CORRECT, Status.NOT_RECORDED):
        return f"{choice}: not profiled: {_failed(choice, trial)}"
    found = profiling.of(choice.draft.plan, trial)
    if found is None:
        return f"{choice}: not profiled: it does not compile for {info.architecture}"
    return found


def profile_text(choice: Choice, found: Profiled) -> str:
    """Write what a profile says."""
    lines = [f"{choice}: bound by {found.kind}; from {found.degree}"]
    for name, value in found.metrics.items():
        unit, meaning = METRICS[name]
        lines.append(f"- {name}: {value:.4g}{' ' + unit if unit else ''} ({meaning})")
    lines.append("findings:" if found.findings else "no findings")
    for one in found.findings:
        place = f" [line {one.line} of the template]" if one.line else ""
        lines.append(f"- {one.text} {one.advice}{place}")
    return "\n".join(lines)


class Searching:
    """Search a draft on one workload; nothing of it is recorded."""

    def __init__(self, draft: Draft, workload: Workload, searcher: str, seed: int) -> None:
        self._draft, self._workload = draft, workload
        plan, evaluator = draft.plan, draft.evaluator
        self._pool = valid_configs(plan.space, evaluator.names(workload))
        if not len(self._pool):
            raise no_valid_config(plan.spec, workload, self._pool)
        default = plan.space.default
        self._searcher = make_searcher(
            searcher,
            self._pool,
            plan.space,
            seed=seed,
            budget=len(self._pool),
            seeds=(default,) if default is not None and default in self._pool else (),
            axes=workload.values,
        )
        self.trials: list[Trial] = []

    def run(self, most: int, deadline_s: float) -> None:
        """Try up to `most` configs; none is begun after the deadline."""
        evaluator = self._draft.evaluator
        pipeline = TrialExecutor(evaluator, adaptive=False)
        proposer = PrecompilingSearcher(self._searcher, evaluator, self._workload)
        asked = 0
        try:
            while True:
                while asked < most and len(pipeline) < DEPTH and time.monotonic() < deadline_s:
                    pending = proposer.next()
                    if pending is None:
                        break
                    if not asked:
                        require_arguments(Choice(self._draft, self._workload, pending.config))
                    pipeline.begin(pending)
                    asked += 1
                self.trials += proposer.refused()
                if not len(pipeline):
                    return
                trial = pipeline.take()
                proposer.tell(trial)
                self.trials.append(trial)
        finally:
            pipeline.close()
            proposer.close()

    def text(self, baseline_us: Callable[[Workload], float], info: DeviceInfo) -> str:
        """Write the best configs and what failed."""
        timed = fastest(self.trials)
        about = "" if self._pool.size_is_exact else "about "
        valid = f"{about}{self._pool.estimated_size}"
        lines = [
            f"{self._draft.name} on {self._workload}: {len(self.trials)} of {valid} valid configs "
            f"tried, {len(timed)} correct"
        ]
        if timed:
            baseline = baseline_us(self._workload)
            lines.append(f"the baseline takes {baseline:.4g} us; the best:")
            for trial in timed[:BEST]:
                assert trial.time_us is not None
                speedup = baseline / trial.time_us
                lines.append(f"- {trial.time_us:.4g} us, {speedup:.3g}x: {trial.config}")
            measurement = timed[0].measurement
            assert measurement is not None
            lines.append(_taken(measurement, info))
        return "\n".join([*lines, *self._failures()])

    def _failures(self) -> list[str]:
        """One line a kind of failure, with its first reason."""
        failed = [trial for trial in self.trials if trial.status is not Status.CORRECT]
        lines = []
        for status in dict.fromkeys(trial.status for trial in failed):
            same = [trial for trial in failed if trial.status is status]
            choice = Choice(self._draft, self._workload, same[0].config)
            lines.append(f"failed, {len(same)}: the first with {same[0].config}:")
            lines.append(_failed(choice, same[0]))
        return lines


def _trial(choice: Choice) -> Trial:
    require_arguments(choice)
    evaluator = choice.draft.evaluator
    return evaluator.finish(evaluator.start(choice.workload, choice.config))


def _untried(choice: Choice, info: DeviceInfo) -> Trial:
    """Make the trial of a config that nothing runs: it knows what the compiler says."""
    require_arguments(choice)
    evaluator, name = choice.draft.evaluator, choice.draft.plan.candidate
    pending = evaluator.start(choice.workload, choice.config)
    made = evaluator.ready(pending)
    if isinstance(made, Outcome):
        return Trial(name, choice.workload, choice.config, made.status, made.reason)
    assert pending.compilation is not None
    launch = made.launches[0]
    resources = pending.compilation.result().resources[launch.kernel]
    return Trial(
        candidate=name,
        workload=choice.workload,
        config=choice.config,
        status=Status.NOT_RECORDED,
        resources=resources,
        occupancy=occupancy(limits_for(info.compute_capability), resources, launch),
    )


def _failed(choice: Choice, trial: Trial) -> str:
    return _why(choice, trial.status, trial.reason)


def _why(choice: Choice, status: Status, reason: str) -> str:
    """Word a failure; what ran names lines of the rendered source."""
    if status in _RUN:
        reason = choice.draft.evaluator.in_template(choice.workload, choice.config, reason)
    return failure(choice, status, reason)


def _taken(measurement: Measurement, info: DeviceInfo) -> str:
    """Say how a time was taken, and whose it is."""
    times = measurement.times_us
    text = (
        f"(median of {len(times)} times of {measurement.calls_per_replay} calls each, "
        f"{min(times):.4g} to {max(times):.4g} us, over {measurement.buffer_sets} sets of buffers; "
        "verified first"
    )
    if measurement.stopped_early:
        text += "; ended early, for it was clearly slower"
    if info.on_cpu:
        return f"{text})\nThis is the time of a CPU: it says nothing of a GPU's."
    where = "answered from a recording of" if info.recorded else "on"
    return f"{text}; {where} {info.name})"
