"""All that an agent reads before a round, composed from a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles

from tuner.analysis.base import Degree
from tuner.analysis.roofline import peak_gflops
from tuner.device.base import DeviceInfo
from tuner.device.inputs import input_kinds_for
from tuner.extensions.agents.base import BriefedCandidate, Briefing
from tuner.extensions.agents.findings import Observed, search_findings, value_costs
from tuner.extensions.agents.history import memory_text
from tuner.extensions.agents.prompts import (
    keys,
    microseconds,
    one_line,
    own_sections,
    percent,
    prompt,
    size,
)
from tuner.extensions.agents.sections import NEEDED_SECTIONS
from tuner.model.config import Config
from tuner.model.expressions import Value
from tuner.model.kernel import Argument, KernelSpec, Workload
from tuner.model.statistics import average_speedup, floor_us
from tuner.model.trial import Finding, Trial, rank_findings
from tuner.process.files import read_text
from tuner.report.formatting import pairs, times
from tuner.session.events import Profiled, RoundEnded
from tuner.session.rounds import RoundRecord, history, population, profiles
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates
from tuner.tuning.progress import best_trials, mean_speedup

# Ours: a draft keeps most of its source's lines, a template of one's own next to none.
MADE_OF = 0.5
# Fewer timings do not tell how they vary.
FEWEST_TIMES = 4
# What the first round is told of the seconds that another one takes.
FIRST_PHASES = ("search", "profile")
# How kinds of inputs are told whose names do not say it.
_KINDS = {
    "normal": "ordinary",
    "zeros": "half zeros",
    "extreme": "extremes (also denormals, -0; where the baseline is right)",
    "nonfinite": "NaN and infinities",
}


@dataclass(frozen=True, slots=True)
class KernelTask:
    """What is tuned, where, and how much a profile can know there.

    `degree` is None where nothing is profiled. `source` is the baseline's text, `reference` that of
    the float64 reference, "" to leave it out. `operators` has the value of each of its macros, and
    `weights` says how often each workload of a mix comes.
    """

    spec: KernelSpec
    source: str
    info: DeviceInfo
    degree: Degree | None
    operators: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""
    weights: Mapping[Workload, float] = field(default_factory=dict)

    @property
    def peak_gflops(self) -> float | None:
        """The rate of the declared operations, None where no peak is declared or known."""
        info = self.info
        if not self.spec.peak or self.spec.operations is None or info.on_cpu or info.evaluator:
            return None
        return peak_gflops(info.compute_capability, info.multiprocessors, self.spec.peak)

    def floor_us(self, workload: Workload) -> float:
        """Compute the least time of a call, by the declared bytes and operations."""
        spec = self.spec
        bytes_us = floor_us(spec.min_bytes.integer(workload.values), self.info.streaming_gbps)
        if spec.operations is None or self.peak_gflops is None:
            return bytes_us
        return max(bytes_us, spec.operations.integer(workload.values) / (self.peak_gflops * 1e3))


def stable_text(task: KernelTask) -> str:
    """Write the task, the kernel, the formats and the hardware, in under 20 kB."""
    major, minor = task.info.compute_capability
    return prompt(
        "stable",
        task=task,
        arguments=[
            _argument(argument, task.spec.is_sized(argument))
            for argument in task.spec.arguments
            if not argument.added
        ],
        workloads=_workloads(task),
        needed=NEEDED_SECTIONS,
        capability=f"{major}.{minor}",
        hardware=task.info.limits,
        surroundings=_group_by_surroundings(task.spec, (*task.spec.tuned, *task.spec.held_out)),
        kinds=[_KINDS.get(kind, kind) for kind in input_kinds_for(task.spec)],
        repeats=all(argument.deterministic for argument in task.spec.arguments),
        measured=[n for n, tolerance in task.spec.tolerances.items() if tolerance.measured],
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
    if argument.note:
        notes += f"; always {one_line(argument.note, 200)}"
    return [argument.name, argument.dtype, f"[{', '.join(d.text for d in argument.shape)}]", notes]


def _workloads(task: KernelTask) -> Iterator[list[str]]:
    spec = task.spec
    for workload in spec.tuned:
        row = [
            workload.key,
            size(spec.min_bytes.integer(workload.values)),
            microseconds(task.floor_us(workload)),
        ]
        yield row + (
            [] if spec.operations is None else [f"{spec.operations.integer(workload.values):.3g}"]
        )


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a session stands before a round.

    `base` is the candidate that the policy chose, None where the agent chooses. `shown` is the one
    whose template is shown and that `best`, its fastest correct trial on each tuned workload, and
    `findings` belong to: the base, or else the fastest of the population. `baselines_us` has every
    tuned workload. `values` says what each value of each parameter costs, `profiled` what profiles
    say, `peers_us` the fastest other implementation of a workload and its time, where finals have
    timed any, and `phases_s` what a round takes; before the first, `candidate` is not among them.
    `trials` are how many configs a search tries on each workload, where that is said.
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
    values: Sequence[tuple[str, str]] = ()
    profiled: Sequence[Profiled] = ()
    peers_us: Mapping[Workload, tuple[str, float]] = field(default_factory=dict)
    phases_s: Mapping[str, float] = field(default_factory=dict)
    trials: int | None = None


def briefing(task: KernelTask, now: Situation) -> Briefing:
    return Briefing(
        round=now.round,
        stable=stable_text(task),
        current=current_text(task, now),
        base=now.base,
        population=tuple(now.population),
        findings=tuple(now.findings),
        example=task.spec.tuned[0].key,
    )


def current_text(task: KernelTask, now: Situation) -> str:
    """Write what changed since the last round: the base, how it does, why, and what was tried."""
    findings = rank_findings(now.findings)
    first, *others = (trial.config for trial in now.best.values()) if now.best else (Config(()),)
    shared = {n: v for n, v in first.items() if all(n in o and o[n] == v for o in others)}
    common = shared if others else {}
    member = {candidate.name: candidate for candidate in now.population}[now.shown]
    return prompt(
        "current",
        now=now,
        member=member,
        summary=member_summary(
            now.best, now.baselines_us, task.weights, comparable=not task.info.on_cpu
        ),
        lines=member.template.split("\n"),
        space=own_sections(member.space),
        cost=_cost(now.phases_s),
        launch_rows=_launch_rows,
        measured={one.workload: _measured(task, now, one) for one in now.profiled},
        rows=[_row(task, now, w, common) for w in now.baselines_us] if now.best else [],
        common=common,
        told=findings,
        lesser=[finding.topic for finding in now.findings if finding not in findings],
        comparable=not task.info.on_cpu,
        memory=memory_text(now.history, comparable=not task.info.on_cpu),
    )


def _cost(phases_s: Mapping[str, float]) -> str:
    parts = [
        f"{what} {phases_s[name]:.0f} s"
        for name, what in (("candidate", "checks"), ("search", "search"), ("profile", "profile"))
        if phases_s.get(name, 0.0) >= 0.5
    ]
    if not parts:
        return ""
    if "candidate" not in phases_s:
        return (
            f"One more round costs such a search and profile again ({', '.join(parts)}) and checks."
        )
    return f"One more round costs {sum(phases_s.values()):.0f} s here: {', '.join(parts)}."


def _measured(task: KernelTask, now: Situation, profiled: Profiled) -> str:
    """Say what a profiled config moves, how its blocks fill the GPU and how its times vary."""
    trials = {w.key: trial for w, trial in now.best.items() if not task.spec.surroundings_of(w)}
    trial = trials.get(profiled.workload)
    if trial is None or not trial.time_us or dict(trial.config) != dict(profiled.config):
        return ""
    parts = []
    if moved := profiled.metrics.get("dram_bytes"):
        gbps = moved / (trial.time_us * 1e3)
        share = percent(gbps / task.info.streaming_gbps)
        parts.append(f"{size(int(moved))} of DRAM traffic, {gbps:,.0f} GB/s, {share} of the rate")
    if len(profiled.launches) == 1 and (resident := profiled.launches[0].resident):
        waves = profiled.launches[0].blocks / (resident * task.info.multiprocessors)
        parts.append(f"{waves:,.{waves < 10:d}f} waves of blocks")
    if trial.measurement and len(trial.measurement.times_us) >= FEWEST_TIMES:
        low, middle, high = quantiles(trial.measurement.times_us)
        parts.append(f"half of its times within {percent(max((high - low) / middle, 0.001))}")
    return "; ".join(parts)


def _launch_rows(profiled: Profiled) -> Iterator[list[str]]:
    for launch in profiled.launches:
        yield [
            launch.kernel,
            f"{launch.blocks} x {launch.threads}",
            "-" if launch.registers is None else f"{launch.registers}",
            f"{launch.shared_bytes}",
            "-" if launch.resident is None else f"{launch.resident} ({launch.limiter})",
            microseconds(launch.counted_us),
        ]


def member_summary(
    best: Mapping[Workload, Trial],
    baselines_us: Mapping[Workload, float],
    weights: Mapping[Workload, float] | None = None,
    *,
    comparable: bool = True,
) -> str:
    """Summarize how a candidate did; of times that are not `comparable` nothing is said."""
    lines = []
    ratios = {w: baselines_us[w] / t.time_us for w, t in best.items() if t.time_us}
    if not ratios:
        return "No config ran correctly."
    before = [weights[workload] * us for workload, us in baselines_us.items()] if weights else []
    mean = average_speedup([ratios.get(workload, 1.0) for workload in baselines_us], before)
    how = "time in all of a mix" if weights else "geometric mean"
    text = f"{times(mean)} as fast as the baseline"
    if len(ratios) > 1:
        high = max(ratios, key=lambda workload: ratios[workload])
        low = min(ratios, key=lambda workload: ratios[workload])
        text += f" ({how} of {len(baselines_us)} workloads; {times(ratios[high])} on "
        text += f"{high.key}, {times(ratios[low])} on {low.key})"
    lines.append(f"{text}." if comparable else "It ran correctly.")
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
    if resources is not None and resources.spill_bytes:
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
        "-" if task.info.on_cpu else times(baseline_us / time_us),
        # Between its neighbours it finds its inputs in the L2.
        "-"
        if task.info.on_cpu or task.spec.surroundings_of(workload)
        else percent(task.floor_us(workload) / time_us),
        used,
        share,
        pairs(differing) or "as all",
    ]


class Briefer:
    """Compose briefings for one run; the same session gives the same text."""

    def __init__(
        self,
        plan: Plan,
        session: Session,
        candidates: Candidates,
        info: DeviceInfo,
        degree: Degree | None,
    ) -> None:
        self._plan, self._session, self._candidates = plan, session, candidates
        source = read_text(plan.spec.source)
        # A template that is the source with parameters put in shares most of its lines.
        lines = {line.strip() for line in source.split("\n") if len(line.strip()) > 1}
        same = len(lines & {line.strip() for line in plan.template.text.split("\n")})
        # Measured at each start: what is said of it is to be the same in each request.
        gbps = float(session.environment.get("streaming_gbps", info.streaming_gbps))
        self._task = KernelTask(
            replace(plan.spec, tuned=plan.tuned, held_out=plan.held_out),
            source="" if same >= MADE_OF * len(lines) else source,
            info=replace(info, streaming_gbps=gbps),
            degree=degree,
            operators=dict(plan.config.operators),
            weights=plan.config.weights,
            reference=plan.spec.torch.text if plan.spec.torch else read_text(plan.spec.reference),
        )

    def of(self, number: int, base: str | None, phases_s: Mapping[str, float]) -> Briefing:
        """Brief for one round; `base` is the policy's choice, None where the agent chooses.

        `phases_s` is what this run has taken so far, for want of a round that says it.
        """
        members = tuple(
            BriefedCandidate(
                name=candidate.name,
                parent=candidate.parent,
                template=candidate.template_text,
                space=candidate.space_text,
                speedup=mean_speedup(self._session, candidate.name),
            )
            for candidate in population(self._session)
        )
        shown = (
            base
            or max(members, key=lambda briefed_candidate: briefed_candidate.speedup or 0.0).name
        )
        plan = self._candidates.plan(shown)
        profiled = profiles(self._session, shown)
        findings = {
            (finding.topic, finding.line): finding
            for one in reversed(profiled)
            for finding in one.findings
        }
        trials = {w: self._session.trials(shown, w) for w in plan.tuned}
        comparable = not self._session.on_cpu
        asked = plan.space, trials, plan.template, plan.spec.launch
        searched = search_findings(*asked, comparable=comparable)
        seen = [Observed.of(*one) for one in trials.items()] if comparable else []
        ended, baselines = self._session.events(RoundEnded), self._session.baselines()
        costs = [
            round_ended.phases_s
            for round_ended in ended
            if round_ended.round < number and round_ended.phases_s
        ]
        now = Situation(
            round=number,
            rounds=self._plan.config.rounds,
            base=base,
            shown=shown,
            population=members,
            best=best_trials(self._session, shown),
            baselines_us={w: baselines[w].measurement.median_us for w in self._plan.tuned},
            findings=[*findings.values(), *searched],
            history=[record for record in history(self._session) if record.number < number],
            values=list(value_costs(plan.space, seen, plan.template)),
            profiled=profiled,
            peers_us=self._peers_us(),
            phases_s=costs[-1] if costs else {n: phases_s.get(n, 0.0) for n in FIRST_PHASES},
            trials=self._plan.config.trials,
        )
        return briefing(self._task, now)

    def _peers_us(self) -> dict[Workload, tuple[str, float]]:
        """Find the fastest of the other implementations that finals have timed so far."""
        fastest = {}
        for comparison in self._session.comparisons():
            medians = {
                median(times[comparison.column(name)] for times in comparison.rounds): name
                for name in comparison.peers
            }
            if medians and comparison.workload in self._plan.tuned:
                fastest[comparison.workload] = medians[min(medians)], min(medians)
        return fastest


def _group_by_surroundings(
    spec: KernelSpec, workloads: Sequence[Workload]
) -> dict[str, tuple[Workload, ...]]:
    """Group workloads by what they are measured in, as the file states it; not those alone."""
    groups: dict[str, list[Workload]] = {}
    for workload in workloads:
        held = (around for around in spec.surroundings if around.holds(workload.values))
        if (surroundings := next(held, None)) is not None:
            groups.setdefault(str(surroundings), []).append(workload)
    return {text: tuple(listed) for text, listed in groups.items()}
