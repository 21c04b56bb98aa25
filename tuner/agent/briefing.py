"""All that an agent reads before a round, composed from a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.agent.base import BriefedCandidate, Briefing
from tuner.agent.findings import constrained, search_findings
from tuner.agent.history import RoundRecord, history, memory_text, population
from tuner.agent.prompts import (
    clipped,
    joined,
    keys,
    microseconds,
    numbered,
    one_line,
    percent,
    quoted,
    settings,
    size,
    table,
    times,
)
from tuner.analysis.base import Degree
from tuner.device.base import DeviceInfo
from tuner.model.expressions import Value
from tuner.model.hardware import KIB, limits_for
from tuner.model.kernel import Argument, KernelSpec, LaunchSpec, Limits, Workload
from tuner.model.statistics import floor_us, geometric_mean
from tuner.model.trial import Finding, Trial, ranked
from tuner.process.files import read_text
from tuner.session.records import CandidateRecord
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.space.schema import NEEDED_SECTIONS, OWN_SECTIONS
from tuner.tuning.evaluator import Candidates
from tuner.tuning.profiling import profiles
from tuner.tuning.progress import best_trials, mean_speedup

# Characters; a longer text is cut, and says so.
MOST_SOURCE, MOST_REFERENCE = 10_000, 4_000

_DEGREES = {
    Degree.COUNTERS: "Profiles have Nsight Compute's counters, times, the machine code and the "
    "compiler's report. Findings from them were measured.",
    Degree.TIMING: "Profiles have times, the machine code and the compiler's report, and no "
    "counters: they may not be read here. What a finding says of caches, stalls or conflicts is "
    "reasoned from the code, not measured.",
    Degree.STATIC: "Profiles have the machine code and the compiler's report alone, for there is "
    "no GPU here to profile on. What a finding says of speed is reasoned from the code.",
}
_TEMPLATE_RULES = """\
- `@{ expression }@` writes a value; a boolean comes out as `true` or `false`.
- `//% if x`, `//% elif y`, `//% else`, `//% endif` stand alone on their lines, as do `//% for i in
  range(n)`, `//% set name = value` and `//% macro f(a)` with their ends; `/*% ... %*/` is a
  statement anywhere, `/*# ... #*/` a comment that is left out. Nothing else of Jinja's delimiters
  means anything, so CUDA's own braces are safe.
- Expressions: `+ - * / // % **`, `~` to join texts, comparisons, `in`, `and`, `or`, `not`,
  `a if c else b`; the functions `min`, `max`, `abs`, `ceil_div`, `range`; the filters `abs`,
  `float`, `int`, `join`, `length`, `lower`, `max`, `min`, `round`, `upper`; `loop.index0` and its
  kin. No include, import, attributes or other calls.
- Every declared parameter is used by the template or a launch, and every name that is used is a
  parameter, an axis or an operator's macro; none of them is set again.
- Prefer a head of `constexpr` lines and `if constexpr` below it to templated bodies."""


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
    goal = (
        f"Make the CUDA kernel `{task.spec.name}` faster on {task.info.name}. Write a template "
        "with explicit parameters and the search space beside it; a program checks both, searches "
        "the space on every tuned workload, profiles what wins, and reports in the next round. "
        "What counts is the geometric mean over the tuned workloads of the baseline's time over "
        "yours, each with its own best config. Results must stay within the tolerances on every "
        "kind of input, on held-out and edge-case sizes too."
    )
    return _sections(
        ("Task", goal),
        ("The kernel", _kernel(task)),
        ("Workloads", _workloads(task)),
        ("The search space", _space_rules(task.spec)),
        ("The template", _TEMPLATE_RULES),
        ("Hardware", _hardware(task.info)),
        ("Profiles", _DEGREES[task.degree]),
    )


def _sections(*sections: tuple[str, str]) -> str:
    return "\n\n".join(f"# {title}\n\n{text}" for title, text in sections)


def _kernel(task: KernelTask) -> str:
    spec = task.spec
    source = clipped(task.source, MOST_SOURCE, "the baseline's source is longer")
    parts = [quoted(source, "cuda", f"The baseline, `{spec.source.name}`")]
    parts.append("The baseline is launched so:\n" + "\n".join(_launches(spec.baseline)))
    if task.reference:
        text = clipped(task.reference, MOST_REFERENCE, "the reference is longer")
        what = f"The reference in float64, `{spec.reference.name}`, which decides what is right"
        parts.append(quoted(text, "python", what))
    parts.append(
        "Arguments, in the kernel's order; neither they nor their meaning may change:\n\n"
        + table(["name", "dtype", "shape or value", "role"], map(_argument, spec.arguments))
    )
    if task.operators:
        chosen = ", ".join(f"{name}={value}" for name, value in task.operators.items())
        parts.append(f"Macros that belong to the operator, defined for every source: {chosen}.")
    lines = ["Tolerances:"]
    for name, one in spec.tolerances.items():
        codes = "" if one.codes is None else f", {one.codes:g} of the codes may be off by one"
        lines.append(f"- {name}: |out - ref| <= {one.absolute:g} + {one.relative:g} * |ref|{codes}")
    return "\n\n".join([*parts, "\n".join(lines)])


def _launches(launches: Iterable[LaunchSpec]) -> Iterator[str]:
    for launch in launches:
        grid = ", ".join(one.text for one in launch.grid)
        block = ", ".join(one.text for one in launch.block)
        shared = f", shared_memory {launch.shared_memory.text}" if launch.shared_memory else ""
        when = f", when {launch.when.text}" if launch.when else ""
        yield f"- `{launch.kernel}`: grid [{grid}], block [{block}]{shared}{when}"


def _argument(argument: Argument) -> list[str]:
    notes: str = argument.role
    if argument.value is not None:
        return [argument.name, argument.dtype, f"= {argument.value.text}", "scalar"]
    if argument.nonfinite:
        notes += ", may hold NaN and infinities"
    if not argument.deterministic:
        notes += ", bits may differ between runs"
    return [argument.name, argument.dtype, f"[{', '.join(d.text for d in argument.shape)}]", notes]


def _workloads(task: KernelTask) -> str:
    spec = task.spec
    rows = [["workload", "kind", "traffic", "floor us"]]
    if spec.operations is not None:
        rows[0].append("operations")
    kinds = [("tuned", one) for one in spec.tuned] + [("held out", one) for one in spec.held_out]
    for kind, workload in kinds:
        traffic = size(spec.min_bytes.integer(workload.values))
        rows.append([workload.key, kind, traffic, microseconds(task.floor_us(workload))])
        if spec.operations is not None:
            rows[-1].append(f"{spec.operations.integer(workload.values):.3g}")
    parts = [
        f"The operator must move at least `{spec.min_bytes.text}` bytes. The floor is the time "
        f"that takes at the {task.info.streaming_gbps:,.0f} GB/s measured here; a launch adds "
        "its own.",
        table(rows[0], rows[1:]),
    ]
    if spec.edge_cases:
        boundary = "; ".join(workload.key for workload in spec.edge_cases)
        parts.append(f"Verified and never timed: {boundary}.")
    return "\n\n".join(parts)


def _space_rules(spec: KernelSpec) -> str:
    own = ", ".join(f"`{name}`" for name in OWN_SECTIONS)
    needed = ", ".join(f"`{name}`" for name in NEEDED_SECTIONS)
    axes = ", ".join(spec.axes)
    macros = "".join(f", {operator.name}" for operator in spec.operators)
    return (
        f"A YAML file. Yours are {own}; {needed} are needed. Every other key is the user's: copy "
        "it as it stands in the base's space, or leave it out; a changed one is refused. "
        f"{_limits(spec.limits)}\n\n"
        "- `parameters`: `name: [values]`, numbers, texts or booleans; few values each. The "
        "program says where the first or last value of a list wins.\n"
        "- `constraints`: expressions over parameters, axes and the device's numbers that every "
        "config satisfies; Python's syntax with `+ - * / // % ** << >> & | ^`, comparisons, "
        "`in (...)`, `and`, `or`, `not`, `a if c else b`, `min`, `max`, `abs`, `ceil_div`; "
        "booleans are `True` and `False`. What a constraint rules out costs nothing; what fails "
        "to compile, to launch or to be right costs a trial.\n"
        "- `default`: one value for each parameter, valid on a tuned workload: your best guess.\n"
        "- `suggestions`: a list of other configs that are tried next, each by what differs from "
        "the default; may be left out.\n"
        "- `launch`: a list of `{kernel, grid, block}` with `shared_memory`, `cluster`, "
        "`pdl` and `when` where needed, all of them such expressions. The launches run "
        "in order, and all take the same arguments.\n"
        f"- Names: the parameters; the axes {axes}; `max_threads`, `max_shared_bytes` (of a "
        "block), `multiprocessors`, `warp_size`. In the template: the parameters, the axes"
        f"{macros}."
    )


def _limits(limits: Limits) -> str:
    limited = (
        (limits.max_registers, f"at most {limits.max_registers} registers"),
        (limits.max_shared_bytes, f"at most {limits.max_shared_bytes} bytes of shared memory"),
        (limits.min_occupancy, f"an occupancy of at least {limits.min_occupancy or 0:g}"),
    )
    known = [text for value, text in limited if value is not None]
    if limits.spills == "forbid":
        known.append("no spills")
    if not known:
        return "The user sets no `limits`."
    return f"The user's `limits` are {', '.join(known)}: yours may be stricter, not looser."


def _hardware(info: DeviceInfo) -> str:
    limits = limits_for(info.compute_capability)
    major, minor = info.compute_capability
    if info.on_cpu:
        return (
            f"{info.name}: kernels run on a CPU, through headers that stand for CUDA's, to see "
            f"whether they are right. Its times say nothing of a GPU's. {info.multiprocessors} "
            f"processors stand for multiprocessors; limits are those of compute capability "
            f"{major}.{minor}."
        )
    answers = ", answered from a recording" if info.recorded else ""
    clusters = f"up to {limits.cluster_blocks} blocks" if limits.cluster_blocks > 1 else "none"
    rows = [
        ["compute capability", f"{major}.{minor}, compiled for {info.architecture}"],
        ["multiprocessors", f"{info.multiprocessors}"],
        ["streaming rate", f"{info.streaming_gbps:,.0f} GB/s, read and written, measured"],
        ["L2", size(info.l2_bytes)],
        ["registers", f"{limits.registers_per_multiprocessor} a multiprocessor, "
                      f"{limits.registers_per_thread} a thread at most"],
        ["shared memory", f"{limits.shared_bytes_per_multiprocessor // KIB} KiB a multiprocessor, "
                          f"{limits.shared_bytes_per_block} bytes a block at most"],
        ["threads", f"{limits.threads_per_block} a block at most; "
                    f"{limits.warps_per_multiprocessor} warps and "
                    f"{limits.blocks_per_multiprocessor} blocks a multiprocessor"],
        ["clusters", clusters],
    ]  # fmt: skip
    return f"{info.name}{answers}.\n\n" + table(["what", "how much"], rows)


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
    member = {one.name: one for one in now.population}[now.shown]
    choice = (
        f"Choose the candidate to build on among all below. Shown in full is {now.shown}, the "
        "fastest; the fastest is not always the best to build on."
        if now.base is None
        else f"Build on the candidate {now.base}: the policy chose it."
    )
    template = clipped(numbered(member.template), MOST_TEMPLATE, "the template is longer")
    space = clipped(member.space, MOST_SPACE, "the search space is longer")
    what = f"The template of {member.name}, each line after its number and `| `"
    candidate = "\n\n".join(
        (
            member.summary,
            quoted(template, "cuda", what),
            quoted(space, "yaml", f"The search space of {member.name}"),
        )
    )
    return _sections(
        (f"Round {now.round} of {now.rounds}", choice),
        (f"Candidate {member.name}", candidate),
        (f"How {member.name} does", _results(task, now)),
        (f"Findings about {member.name}", _findings(now.findings)),
        ("What was tried", memory_text(now.history)),
        ("All candidates", _population(now)),
    )


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


def _results(task: KernelTask, now: Situation) -> str:
    if not now.best:
        return "No config ran correctly on any workload."
    first, *others = (trial.config for trial in now.best.values())
    shared = {n: v for n, v in first.items() if all(n in o and o[n] == v for o in others)}
    common = shared if others else {}
    rows = [_row(task, now, workload, common) for workload in now.baselines_us]
    head = "workload, baseline, best, as fast, of the floor, registers, occupancy, best config"
    text = table(head.split(", "), rows)
    if common:
        text += f"\n\nAll best configs have {settings(common)}."
    told = "Times of the search in microseconds a call; near 100 % of the floor little is left."
    return f"{told}\n\n{text}"


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


def _findings(findings: Sequence[Finding]) -> str:
    told = ranked(findings)
    if not told:
        return "Nothing can be said of it yet."
    lines = []
    for number, one in enumerate(told, 1):
        line = None if one.line is None else f"line {one.line}"
        parameter = one.parameter and f"parameter {one.parameter}"
        about = ", ".join(filter(None, (one.topic, line, parameter)))
        text, advice = one_line(one.text, 700), one_line(one.advice, 400)
        lines.append(f"{number}. [{about}] {text} **{advice}**")
    if len(findings) > len(told):
        lesser = joined((one.topic for one in findings if one not in told), most=8)
        lines.append(f"\n[left out: {len(findings) - len(told)} lesser findings: {lesser}]")
    return "\n".join(lines)


def _population(now: Situation) -> str:
    shown = now.population[-MOST_MEMBERS:]
    parts = []
    for member in shown:
        parent = f", made from {member.parent}" if member.parent else ""
        parts.append(f"- {member.name}{parent}")
        parts += [f"  {line}" for line in member.summary.splitlines() or [""]]
    if len(shown) < len(now.population):
        names = joined((one.name for one in now.population[:-MOST_MEMBERS]), most=20)
        parts.append(f"[left out: older candidates {names}]")
    return "\n".join(parts)


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
            reference=read_text(plan.spec.reference),
        )

    def of(self, number: int, base: str | None) -> Briefing:
        """Brief for one round; `base` is the policy's choice, None where the agent chooses."""
        candidates = population(self._session)
        speedups = {one.name: mean_speedup(self._session, one.name) or 0.0 for one in candidates}
        shown = base or max(speedups, key=lambda name: speedups[name])
        now = Situation(
            round=number,
            rounds=self._plan.config.rounds,
            base=base,
            shown=shown,
            population=tuple(map(self._member, candidates)),
            best=best_trials(self._session, shown),
            baselines_us=self._baselines_us(),
            findings=self._findings(shown),
            history=[one for one in history(self._session) if one.number < number],
        )
        return briefing(self._task, now)

    def _baselines_us(self) -> dict[Workload, float]:
        baselines = self._session.baselines()
        return {w: baselines[w].measurement.median_us for w in self._plan.tuned}

    def _member(self, candidate: CandidateRecord) -> BriefedCandidate:
        made = (one for one in history(self._session) if one.candidate == candidate.name)
        return BriefedCandidate(
            name=candidate.name,
            parent=candidate.parent,
            template=candidate.template_text,
            space=candidate.space_text,
            summary=member_summary(
                best_trials(self._session, candidate.name),
                self._baselines_us(),
                next(made, None),
            ),
        )

    def _findings(self, name: str) -> list[Finding]:
        plan = self._candidates.plan(name)
        found = {
            (finding.topic, finding.line): finding
            for profiled in reversed(profiles(self._session, name))
            for finding in profiled.findings
        }
        searched = search_findings(
            plan.space,
            {w: self._session.trials(name, w) for w in plan.tuned},
            plan.template,
            self._baselines_us(),
        )
        names = self._candidates.evaluator(name).names
        ruled_out = constrained(plan.space, {w: names(w) for w in plan.tuned})
        return [*found.values(), *searched, *ruled_out]
