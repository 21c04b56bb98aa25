"""All that an agent reads before a round, composed from a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.analysis.base import Degree
from tuner.device.base import DeviceInfo
from tuner.extensions.agents.base import BriefedCandidate, Briefing
from tuner.extensions.agents.findings import find_tight_condition, search_findings
from tuner.extensions.agents.history import memory_text
from tuner.extensions.agents.prompts import (
    keys,
    microseconds,
    one_line,
    percent,
    prompt,
    settings,
    size,
)
from tuner.model.config import Config
from tuner.model.expressions import Value
from tuner.model.kernel import Argument, KernelSpec, Workload, group_workloads
from tuner.model.statistics import floor_us, geometric_mean
from tuner.model.trial import Finding, Trial, rank_findings
from tuner.process.files import read_text
from tuner.report.formatting import times
from tuner.session.records import CandidateRecord
from tuner.session.rounds import RoundRecord, history, population
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.space.sections import NEEDED_SECTIONS, OWN_SECTIONS
from tuner.tuning.evaluator import Candidates
from tuner.tuning.profiling import profiles
from tuner.tuning.progress import best_trials, mean_speedup


@dataclass(frozen=True, slots=True)
class KernelTask:
    """What is tuned, where, and how much a profile can know there.

    `source` is the baseline's text, `reference` that of the float64 reference, "" to leave it out.
    `operators` has the value chosen for each of the operator's macros.
    """

    spec: KernelSpec
    source: str
    info: DeviceInfo
    degree: Degree
    operators: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""

    def floor_us(self, workload: Workload) -> float:
        """Compute the time that the declared minimum of traffic takes at the streaming rate."""
        traffic = self.spec.min_bytes.integer(workload.values)
        return floor_us(traffic, self.info.streaming_gbps)


def stable_text(task: KernelTask) -> str:
    """Write the task, the kernel, the formats and the hardware, in under 20 kB."""
    major, minor = task.info.compute_capability
    return prompt(
        "stable",
        task=task,
        arguments=[_argument(one, task.spec.is_sized(one)) for one in task.spec.arguments],
        workloads=_workloads(task),
        own=OWN_SECTIONS,
        needed=NEEDED_SECTIONS,
        capability=f"{major}.{minor}",
        hardware=task.info.limits,
        surroundings=group_workloads(task.spec, (*task.spec.tuned, *task.spec.held_out)),
    )


def _argument(argument: Argument, sized: bool) -> list[str]:
    notes = argument.role + ", sized by your parameters of these names" * sized
    if argument.constant:
        notes += ", constant: may be read before griddepcontrol.wait"
    if argument.zeroed:
        notes += ", all zeros before the first call: leave zeros behind in every call"
    if argument.value is not None:
        return [argument.name, argument.dtype, f"= {argument.value.text}", "scalar"]
    if argument.nonfinite:
        notes += ", may hold NaN and infinities"
    if argument.extreme is not None:
        notes += f", extremes {argument.extreme}"
    if not argument.deterministic:
        notes += ", bits may differ between runs"
    return [argument.name, argument.dtype, f"[{', '.join(d.text for d in argument.shape)}]", notes]


def _workloads(task: KernelTask) -> Iterator[list[str]]:
    spec = task.spec
    for kind, listed in (("tuned", spec.tuned), ("held out", spec.held_out)):
        for one in listed:
            traffic = size(spec.min_bytes.integer(one.values))
            row = [one.key, kind, traffic, microseconds(task.floor_us(one))]
            yield row + (
                [] if spec.operations is None else [f"{spec.operations.integer(one.values):.3g}"]
            )


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a session stands before a round.

    `base` is the candidate that the policy chose, None where the agent chooses. `shown` is the one
    whose template is shown and that `best`, its fastest correct trial on each tuned workload, and
    `findings` belong to: the base, or else the fastest of the population. `baselines_us` has every
    tuned workload.
    """

    round: int
    rounds: int
    base: str | None
    shown: str
    population: Sequence[BriefedCandidate]
    best: Mapping[Workload, Trial]
    baselines_us: Mapping[Workload, float]
    findings: Sequence[Finding]
    history: Sequence[RoundRecord]


def briefing(task: KernelTask, now: Situation) -> Briefing:
    return Briefing(
        round=now.round,
        stable=stable_text(task),
        current=current_text(task, now),
        base=now.base,
        population=tuple(now.population),
        findings=tuple(now.findings),
    )


def current_text(task: KernelTask, now: Situation) -> str:
    """Write what changed since the last round: the base, how it does, why, and what was tried."""
    findings = rank_findings(now.findings)
    first, *others = (trial.config for trial in now.best.values()) if now.best else (Config(()),)
    shared = {n: v for n, v in first.items() if all(n in o and o[n] == v for o in others)}
    common = shared if others else {}
    return prompt(
        "current",
        now=now,
        member={one.name: one for one in now.population}[now.shown],
        rows=[_row(task, now, w, common) for w in now.baselines_us] if now.best else [],
        common=common,
        told=findings,
        lesser=[one.topic for one in now.findings if one not in findings],
        memory=memory_text(now.history),
    )


def member_summary(
    best: Mapping[Workload, Trial],
    baselines_us: Mapping[Workload, float],
    made: RoundRecord | None = None,
) -> str:
    """Summarize a candidate: its speedup and its origin; `made` is the round it is from."""
    lines = []
    if made is not None and made.idea is not None:
        lines.append(one_line(f"Round {made.number}, on {made.base}: {made.idea.change}"))
    ratios = {w: baselines_us[w] / t.time_us for w, t in best.items() if t.time_us}
    if not ratios:
        return "\n".join([*lines, "No config ran correctly."])
    mean = geometric_mean(ratios.get(workload, 1.0) for workload in baselines_us)
    text = f"{times(mean)} as fast as the baseline (geometric mean of {len(baselines_us)} workloads"
    if len(ratios) > 1:
        high = max(ratios, key=lambda workload: ratios[workload])
        low = min(ratios, key=lambda workload: ratios[workload])
        text += f"; {times(ratios[high])} on {high.key}, {times(ratios[low])} on {low.key}"
    lines.append(text + ").")
    missing = [workload for workload in baselines_us if workload not in ratios]
    if missing:
        lines.append(f"No correct config on {keys(missing)}: the baseline serves there.")
    return "\n".join(lines)


def _row(
    task: KernelTask, now: Situation, workload: Workload, common: Mapping[str, Value]
) -> list[str]:
    baseline_us, trial = now.baselines_us[workload], now.best.get(workload)
    time_us = trial.time_us if trial else None
    if trial is None or time_us is None:
        return [workload.key, microseconds(baseline_us), "-", "-", "-", "-", "-", "none correct"]
    differing = {n: v for n, v in trial.config.items() if n not in common}
    resources, occupancy = trial.resources, trial.occupancy
    used = "-" if resources is None or resources.registers is None else f"{resources.registers}"
    if resources is not None and resources.spills:
        used += ", spills"
    if resources is not None and resources.serialized_wgmma:
        used += ", wgmma serialized"
    if resources is not None and resources.static_shared_bytes:
        used += f", {resources.static_shared_bytes} B shared"
    share = f"{percent(occupancy.share)} ({occupancy.limiter})" if occupancy else "-"
    return [
        workload.key,
        microseconds(baseline_us),
        microseconds(time_us),
        times(baseline_us / time_us),
        # Between its neighbours it finds its inputs in the L2.
        "-" if task.spec.surroundings_of(workload) else percent(task.floor_us(workload) / time_us),
        used,
        share,
        settings(differing) or "as all",
    ]


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
        self._task = KernelTask(
            replace(plan.spec, tuned=plan.tuned, held_out=plan.held_out),
            source=read_text(plan.spec.source),
            info=info,
            degree=degree,
            operators=dict(plan.config.operators),
            reference=plan.spec.torch.text if plan.spec.torch else read_text(plan.spec.reference),
        )

    def of(self, number: int, base: str | None) -> Briefing:
        """Brief for one round; `base` is the policy's choice, None where the agent chooses."""
        candidates = population(self._session)
        speedups = {one.name: mean_speedup(self._session, one.name) or 0.0 for one in candidates}
        shown = base or max(speedups, key=lambda name: speedups[name])
        plan = self._candidates.plan(shown)
        found = {
            (finding.topic, finding.line): finding
            for profiled in reversed(profiles(self._session, shown))
            for finding in profiled.findings
        }
        searched = search_findings(
            plan.space,
            {w: self._session.trials(shown, w) for w in plan.tuned},
            plan.template,
            self._baselines_us(),
        )
        names = self._candidates.evaluator(shown).names
        ruled_out = find_tight_condition(plan.space, {w: names(w) for w in plan.tuned})
        now = Situation(
            round=number,
            rounds=self._plan.config.rounds,
            base=base,
            shown=shown,
            population=tuple(map(self._member, candidates)),
            best=best_trials(self._session, shown),
            baselines_us=self._baselines_us(),
            findings=[*found.values(), *searched, *ruled_out],
            history=[one for one in history(self._session) if one.number < number],
        )
        return briefing(self._task, now)

    def _baselines_us(self) -> dict[Workload, float]:
        baselines = self._session.baselines()
        return {w: baselines[w].measurement.median_us for w in self._plan.tuned}

    def _member(self, candidate: CandidateRecord) -> BriefedCandidate:
        records = (one for one in history(self._session) if one.candidate == candidate.name)
        return BriefedCandidate(
            name=candidate.name,
            parent=candidate.parent,
            template=candidate.template_text,
            space=candidate.space_text,
            summary=member_summary(
                best_trials(self._session, candidate.name),
                self._baselines_us(),
                next(records, None),
            ),
        )
