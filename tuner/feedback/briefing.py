"""All that an agent reads before a round, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.agent.base import Briefing, Member
from tuner.expressions import Value
from tuner.feedback.memory import RoundRecord, memory_text
from tuner.feedback.task import Task, stable_text
from tuner.feedback.wording import (
    clipped,
    fenced,
    joined,
    keys,
    microseconds,
    numbered,
    one_line,
    percent,
    settings,
    table,
    times,
)
from tuner.findings import Finding, ranked
from tuner.kernel import Workload
from tuner.statistics import geometric_mean
from tuner.trial import Trial

# Characters; a longer text is cut, and says so.
MOST_TEMPLATE, MOST_SPACE = 16_000, 6_000
MOST_MEMBERS = 12


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
    population: Sequence[Member]
    best: Mapping[Workload, Trial]
    baselines_us: Mapping[Workload, float]
    findings: Sequence[Finding]
    history: Sequence[RoundRecord]


def briefing(task: Task, now: Situation) -> Briefing:
    """Compose the briefing of a round; the same values give the same text."""
    return Briefing(
        round=now.round,
        stable=stable_text(task),
        current=current_text(task, now),
        base=now.base,
        population=tuple(now.population),
        findings=ranked(now.findings),
    )


def current_text(task: Task, now: Situation) -> str:
    """Write what changed since the last round: the base, how it does, why, and what was tried."""
    member = {one.name: one for one in now.population}[now.shown]
    sections = [
        (f"Round {now.round} of {now.rounds}", _choice(now)),
        (f"Candidate {member.name}", _member(member)),
        (f"How {member.name} does", _standing(task, now)),
        (f"Findings about {member.name}", _findings(now.findings)),
        ("What was tried", memory_text(now.history)),
        ("All candidates", _population(now)),
    ]
    return "\n\n".join(f"# {title}\n\n{text}" for title, text in sections)


def member_summary(
    best: Mapping[Workload, Trial],
    baselines_us: Mapping[Workload, float],
    made: RoundRecord | None = None,
) -> str:
    """Say in a few lines how a candidate did and what made it; `made` is the round it is from."""
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


def _choice(now: Situation) -> str:
    if now.base is not None:
        return f"Build on the candidate {now.base}: the policy chose it."
    return (
        f"Choose the candidate to build on among all below. Shown in full is {now.shown}, the "
        "fastest; the fastest is not always the best to build on."
    )


def _member(member: Member) -> str:
    template = clipped(numbered(member.template), MOST_TEMPLATE, "the template is longer")
    space = clipped(member.space, MOST_SPACE, "the search space is longer")
    what = f"The template of {member.name}, each line after its number and `| `"
    return "\n\n".join(
        (
            member.summary,
            fenced(template, "cuda", what),
            fenced(space, "yaml", f"The search space of {member.name}"),
        )
    )


def _standing(task: Task, now: Situation) -> str:
    if not now.best:
        return "No config ran correctly on any workload."
    common = _common([trial.config for trial in now.best.values()])
    rows = [_row(task, now, workload, common) for workload in now.baselines_us]
    head = "workload, baseline, best, as fast, of the floor, registers, occupancy, best config"
    text = table(head.split(", "), rows)
    if common:
        text += f"\n\nAll best configs have {settings(common)}."
    told = "Times of the search in microseconds a call; near 100 % of the floor little is left."
    return f"{told}\n\n{text}"


def _row(task: Task, now: Situation, workload: Workload, common: Mapping[str, Value]) -> list[str]:
    baseline_us, trial = now.baselines_us[workload], now.best.get(workload)
    time_us = trial.time_us if trial else None
    if trial is None or time_us is None:
        return [workload.key, microseconds(baseline_us), "-", "-", "-", "-", "-", "none correct"]
    differing = {n: v for n, v in trial.config.items() if n not in common}
    resources, occupancy = trial.resources, trial.occupancy
    used = "-" if resources is None or resources.registers is None else f"{resources.registers}"
    if resources is not None and resources.spills:
        used += ", spills"
    if resources is not None and resources.static_shared_bytes:
        used += f", {resources.static_shared_bytes} B shared"
    share = f"{percent(occupancy.share)} ({occupancy.limiter})" if occupancy else "-"
    return [
        workload.key,
        microseconds(baseline_us),
        microseconds(time_us),
        times(baseline_us / time_us),
        percent(task.floor_us(workload) / time_us),
        used,
        share,
        settings(differing) or "as all",
    ]


def _common(configs: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Collect the parameters that have one value in all of several configs."""
    if len(configs) < 2:
        return {}
    first, *others = configs
    return {n: v for n, v in first.items() if all(n in o and o[n] == v for o in others)}


def _findings(findings: Sequence[Finding]) -> str:
    told = ranked(findings)
    if not told:
        return "Nothing can be said of it yet."
    lines = [f"{number}. {_finding(finding)}" for number, finding in enumerate(told, 1)]
    if len(findings) > len(told):
        lesser = joined((one.topic for one in findings if one not in told), most=8)
        lines.append(f"\n[left out: {len(findings) - len(told)} lesser findings: {lesser}]")
    return "\n".join(lines)


def _finding(finding: Finding) -> str:
    about = [finding.topic]
    if finding.line is not None:
        about.append(f"line {finding.line}")
    if finding.parameter:
        about.append(f"parameter {finding.parameter}")
    text = one_line(finding.text, 700)
    return f"[{', '.join(about)}] {text} **{one_line(finding.advice, 400)}**"


def _population(now: Situation) -> str:
    shown = now.population[-MOST_MEMBERS:]
    parts = list(_members(shown))
    if len(shown) < len(now.population):
        names = joined((one.name for one in now.population[:-MOST_MEMBERS]), most=20)
        parts.append(f"[left out: older candidates {names}]")
    return "\n".join(parts)


def _members(members: Sequence[Member]) -> Iterator[str]:
    for member in members:
        parent = f", made from {member.parent}" if member.parent else ""
        lines = member.summary.splitlines() or [""]
        yield "\n".join([f"- {member.name}{parent}", *(f"  {line}" for line in lines)])
