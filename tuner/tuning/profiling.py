"""Profile what a search found, and keep what it says in the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tuner.analysis.base import Degree, ProfileSubject
from tuner.analysis.diagnosis import diagnose
from tuner.analysis.metrics import metrics_of
from tuner.analysis.profilers import Profiler
from tuner.device.base import Outcome
from tuner.model.kernel import Workload
from tuner.model.languages import CUDA
from tuner.model.trial import Trial
from tuner.session.events import Profiled
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Evaluator

# The code is the same; reports can name lines only where the compiler wrote them down.
COMPILE_OPTIONS = ("-lineinfo",)


class Profiling:
    """Profile trials of any candidate; `timed`: their times are of the hardware profiled for."""

    def __init__(
        self, profiler: Profiler, evaluator_of: Callable[[Plan], Evaluator], *, timed: bool
    ) -> None:
        self._profiler, self.evaluator_of, self._timed = profiler, evaluator_of, timed

    @property
    def degree(self) -> Degree:
        return self._profiler.degree

    def of(self, plan: Plan, trial: Trial, number: int = 0) -> Profiled | None:
        """Profile a correct trial of `plan`'s candidate; None where it is not compiled here."""
        if self._profiler.device.evaluator:
            return None
        spec = plan.spec
        if spec.is_callable and not self._timed:
            return None
        if spec.language is CUDA:
            spec = replace(spec, compile_options=(*spec.compile_options, *COMPILE_OPTIONS))
        evaluator = self.evaluator_of(replace(plan, spec=spec))
        workload = trial.workload
        pending = evaluator.start(workload, trial.config)
        program = evaluator.ready(pending)
        if isinstance(program, Outcome):
            return None
        resources, share = evaluator.usage(pending)
        around = spec.surroundings_of(workload)
        subject = ProfileSubject(
            program=program,
            lines=evaluator.render(workload, trial.config).lines,
            resources=resources,
            occupancy=share,
            time_us=trial.time_us if self._timed else None,
            traffic_bytes=spec.min_bytes.integer(workload.values),
            operations=spec.operations.integer(workload.values) if spec.operations else None,
            peak=spec.peak,
            surroundings=around.name if around else "",
        )
        profile = self._profiler.profile(subject)
        kind, findings = diagnose(profile)
        return Profiled(
            round=number,
            candidate=trial.candidate,
            workload=workload.key,
            config=dict(trial.config),
            degree=profile.degree,
            kind=kind,
            metrics=metrics_of(profile),
            findings=findings,
            reason=profile.reason,
        )

    def keep(self, plan: Plan, session: Session, number: int, trials: Sequence[Trial]) -> None:
        """Profile trials and note what came of it in a round, unless that is noted already."""
        known = {(one.candidate, one.workload) for one in profiles(session)}
        for trial in trials:
            new = (trial.candidate, trial.workload.key) not in known
            if new and (profiled := self.of(plan, trial, number)) is not None:
                session.record_event(profiled)


def profiles(session: Session, candidate: str | None = None) -> list[Profiled]:
    """List what profiles said, of one candidate or of all."""
    return [one for one in session.events(Profiled) if candidate in (None, one.candidate)]


def worth_profiling(session: Session, plan: Plan, best: Mapping[Workload, Trial]) -> list[Trial]:
    """Choose the best trials of the heaviest workload and of the one that gained least."""
    baselines = session.baselines()
    times = {w: t.time_us for w, t in best.items() if t.time_us is not None}
    if not times:
        return []
    heaviest = max(times, key=lambda workload: plan.spec.min_bytes.integer(workload.values))
    slowest = min(times, key=lambda w: baselines[w].measurement.median_us / times[w])
    return [best[workload] for workload in dict.fromkeys((heaviest, slowest))]
