"""Gather from a session what an agent reads before a round."""

from __future__ import annotations

from dataclasses import replace

from tuner.agent.base import Briefing, Member
from tuner.agent.briefing.findings import constrained, search_findings
from tuner.agent.briefing.text import Situation, Task, briefing, member_summary
from tuner.agent.history import history, population
from tuner.analysis.base import Degree
from tuner.device.base import DeviceInfo
from tuner.model.trial import Finding
from tuner.session.records import Candidate
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates
from tuner.tuning.profiling import profiles
from tuner.tuning.progress import best_trials, mean_speedup


class Briefer:
    """Compose briefings for one run; the same session gives the same text."""

    def __init__(
        self,
        plan: Plan,
        session: Session,
        candidates: Candidates,
        info: DeviceInfo,
        degree: Degree,
    ) -> None:
        self._plan, self._session, self._candidates = plan, session, candidates
        self._task = Task(
            replace(plan.spec, tuned=plan.tuned, held_out=plan.held_out),
            source=plan.spec.source.read_text(encoding="utf-8"),
            info=info,
            degree=degree,
            operators=dict(plan.config.operators),
            reference=plan.spec.reference.read_text(encoding="utf-8"),
        )

    def of(self, number: int, base: str | None) -> Briefing:
        """Brief for one round; `base` is the policy's choice, None where the agent chooses."""
        baselines = self._session.baselines()
        baselines_us = {w: baselines[w].measurement.median_us for w in self._plan.tuned}
        shown = base or self._fastest()
        now = Situation(
            round=number,
            rounds=self._plan.config.rounds,
            base=base,
            shown=shown,
            population=tuple(self._member(one) for one in population(self._session)),
            best=best_trials(self._session, shown),
            baselines_us=baselines_us,
            findings=self._findings(shown),
            history=[one for one in history(self._session) if one.number < number],
        )
        return replace(briefing(self._task, now), findings=tuple(now.findings))

    def _fastest(self) -> str:
        names = [one.name for one in population(self._session)]
        speedups = {name: mean_speedup(self._session, name) or 0.0 for name in names}
        return max(names, key=lambda name: speedups[name])

    def _member(self, candidate: Candidate) -> Member:
        baselines = self._session.baselines()
        baselines_us = {w: baselines[w].measurement.median_us for w in self._plan.tuned}
        made = [one for one in history(self._session) if one.candidate == candidate.name]
        return Member(
            name=candidate.name,
            parent=candidate.parent,
            template=candidate.template_text,
            space=candidate.space_text,
            summary=member_summary(
                best_trials(self._session, candidate.name),
                baselines_us,
                made[0] if made else None,
            ),
        )

    def _findings(self, name: str) -> list[Finding]:
        """The profiles' findings and the search's; one that two profiles share is told once."""
        plan = self._candidates.plan(name)
        baselines = self._session.baselines()
        found = {
            (finding.topic, finding.line): finding
            for profiled in reversed(profiles(self._session, name))
            for finding in profiled.findings
        }
        searched = search_findings(
            plan.space,
            {w: self._session.trials(name, w) for w in plan.tuned},
            plan.template,
            {w: baselines[w].measurement.median_us for w in plan.tuned},
        )
        names = self._candidates.evaluator(name).names
        ruled_out = constrained(plan.space, {w: names(w) for w in plan.tuned})
        return [*found.values(), *searched, *ruled_out]
