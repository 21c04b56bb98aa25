"""The sections on the search: its course, what decided, what was rejected, what was fastest."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from math import inf
from operator import itemgetter

from markupsafe import Markup

from tuner.model.config import format_value
from tuner.model.kernel import Workload
from tuner.model.statistics import PROTOCOL
from tuner.model.trial import INITIAL, LEFT_OUT, Stage, Status, Trial
from tuner.report import charts, formatting
from tuner.report.data import ReportData, fastest, stopped_early
from tuner.report.pages import write_pairs
from tuner.report.tables import Cell, Column, Field, join, list_table, soft, write_table
from tuner.search.importance import Importance, average, importance
from tuner.tuning.hopeless import Hopeless

TOP_CONFIGS = 10
# Times of a search that are closer than this are called equal.
CLEARLY = 1.02
REASONS_SHOWN = 15
REASON_LENGTH, REASON_SHORT = 400, 120
DIFF_LINES = 1500
DIFF_LINES_IN_ALL = 6000
MEANING: dict[Status, str] = {
    Status.CORRECT: "correct",
    Status.CONSTRAINT: "breaks a constraint",
    Status.COMPILE: "does not compile",
    Status.RESOURCE_LIMIT: "over a resource limit",
    Status.LAUNCH: "launch refused or crashed",
    Status.INCORRECT: "wrong result",
    Status.TIMEOUT: "timed out",
    Status.OTHER_BITS: "other bits than are kept",
    Status.NOT_INVARIANT: "rows not invariant",
    Status.NOT_RECORDED: "not in the recording, or lacks a library",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Trials that failed alike: reasons that differ in their numbers only are one kind."""

    trials: tuple[Trial, ...]

    @property
    def first(self) -> Trial:
        return self.trials[0]

    @property
    def meaning(self) -> str:
        """The status in words, and the stage where it was not the search."""
        words = MEANING[self.first.status]
        return words if self.first.stage == "search" else f"{words}, as a finalist"

    @property
    def configs(self) -> int:
        return len({trial.variant for trial in self.trials})

    @property
    def example(self) -> str:
        return formatting.shorten_text(self.first.reason, REASON_LENGTH) or "no reason recorded"


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """One tuned source, the workloads that it serves and its difference from the baseline.

    `blocks` are consecutive lines of one kind, after that kind.
    """

    workloads: tuple[str, ...]
    blocks: tuple[tuple[str, str], ...]
    added: int
    removed: int
    shown: int
    omitted: int


@dataclass(frozen=True, slots=True)
class CandidateImportance:
    """Which parameters of one candidate decide, by workload and on average.

    `chart` is None where no workload has enough trials to tell.
    """

    name: str
    by_workload: tuple[tuple[str, Importance], ...]
    average: tuple[tuple[str, float], ...]
    chart: Markup | None

    @property
    def known(self) -> int:
        return sum(bool(one.shares) for _, one in self.by_workload)


def search_chart(data: ReportData) -> Markup | None:
    """Draw how the best of each workload came down with its trials; None where nothing ran.

    Trials that were stopped early never become the best.
    """
    lines: list[tuple[str, list[float]]] = []
    for workload, trials in data.by_workload().items():
        best, course = inf, []
        for trial in trials:
            if trial.time_us is not None and not stopped_early(trial):
                best = min(best, trial.time_us)
            course.append(best)
        if best < inf:
            lines.append((str(workload), [one / best for one in course]))
    firsts = next(iter(data.by_workload().values()), ())
    names = dict.fromkeys(trial.candidate for trial in firsts) if data.several else ()
    marks = [([t.candidate for t in firsts].index(name), name) for name in names]
    return charts.courses(lines, marks) if lines else None


def occupancy_chart(data: ReportData) -> Markup | None:
    """Draw times over the best of their workload against occupancy; None where none is known."""
    points, winners = [], []
    for trials in data.by_workload().values():
        timed = [t for t in fastest(trials) if t.time_us and t.occupancy]
        for place, trial in enumerate(timed):
            assert trial.occupancy is not None
            assert trial.time_us is not None
            point = trial.occupancy.share, trial.time_us / (timed[0].time_us or 1.0)
            points.append(point)
            winners += [point] if place == 0 else []
    return charts.occupancies(points, winners) if points else None


def space_lines(data: ReportData) -> tuple[str, ...]:
    """Say how much of the space was left out, as slow or because a recording lacks it."""
    if data.pruned is None:
        return ("with --no-prune, configs that `prune` leaves out as slow were searched too",)
    valid, searched = (
        sum(getattr(pruned, n) for pruned in data.pruned) for n in ("valid", "searched")
    )
    counts = [pruned.recorded for pruned in data.pruned if pruned.recorded is not None]
    held = (
        f"the recording holds {sum(counts):,} of {valid:,} valid configs, over all searches: the "
        "others, which may be faster, could not be tried"
    )
    if counts and sum(counts) < valid:
        return (held,)
    if searched == valid:
        return ()
    return (
        f"`prune` left out {valid - searched:,} of {valid:,} valid configs as slow, over all "
        "searches; with --no-prune they are tried too",
    )


def never_worked_lines(data: ReportData) -> tuple[str, ...]:
    """Name the values with which no config worked, why, and what was spent on them.

    Not those that are only over a limit; and of a recording nothing is said.
    """
    lines = []
    for candidate in dict.fromkeys(trial.candidate for trial in data.trials):
        trials = [] if data.recorded else [t for t in data.trials if t.candidate == candidate]
        hopeless = Hopeless()
        for trial in trials:
            hopeless.note(trial)
        of = "" if candidate == INITIAL else f" of {candidate}"
        for name in dict.fromkeys(name for trial in trials for name in trial.config):
            values = dict.fromkeys(t.config[name] for t in trials if name in t.config)
            never = {v: failed for v in values if len(failed := hopeless.failed_by(name, v)) > 1}
            if never:
                unseen = [t.config for t in trials if t.reason.startswith(LEFT_OUT)]
                left_out = sum(config.get(name) in never for config in unseen)
                failed = [*chain.from_iterable(never.values())]
                only = replace(data, records=tuple((trial, 0.0) for trial in failed), finals=())
                first = rejections(only)[0].first
                reason, *_ = first.reason.splitlines() or [""]
                lines.append(
                    f"nothing worked with {name} {', '.join(map(format_value, never))}{of}, in "
                    f"{len(failed)} trials of {sum(trial.seconds for trial in failed):.0f} s"
                    f"{f', so {left_out} configs were left out' * bool(left_out)}: "
                    f"{MEANING[first.status]}: {reason[:REASON_SHORT]}"
                )
    return tuple(lines)


def early_end_lines(data: ReportData) -> tuple[str, ...]:
    done = [ended for ended in data.early_ends if ended.expected_gain is not None]
    gains, trials = [ended.expected_gain or 0.0 for ended in done], sum(e.trials for e in done)
    late = len(data.early_ends) - len(gains)
    lines = []
    if gains:
        lines.append(
            f"{len(gains)} search{'es' * (len(gains) != 1)} ended early, after {trials:,} trials "
            "in all: the untried configs were expected to save no more than "
            f"{max(gains):{'.1%' if max(gains) >= 0.001 else '.2%'}} of the best time"
        )
    if late:
        lines.append(f"{late} search{'es' * (late != 1)} ended early for want of time")
    return tuple(lines)


def protocol_lines(data: ReportData) -> tuple[str, ...]:
    """Say of numbers that were measured otherwise than today that they were."""
    known = protocol_of(data)
    if known == str(PROTOCOL):
        return ()
    return (f"measured by protocol {known}; today's is {PROTOCOL} (CHANGELOG.md)",)


def protocol_of(data: ReportData) -> str:
    """Name the protocol of measuring; before the second one nothing said so."""
    return data.environment.get("protocol", "1")


def undecided_lines(data: ReportData) -> tuple[str, ...]:
    """Say which workloads have no result because they were given up, and why."""
    return tuple(f"{key} is undecided: {reason}" for key, reason in data.undecided.items())


def refused_trials(data: ReportData) -> Iterator[tuple[Trial, str]]:
    """Give configs that are clearly faster than what serves and were refused in the end, and why.

    Of each candidate its fastest on a workload; times of a CPU are compared nowhere.
    """
    reasons = {t.variant: f"{t.status}: {t.reason}" for t in data.finals if t.reason}
    reasons |= {c.variant: f"{c.kind}: {c.reason}" for c in data.checks if c.passed is False}
    for result in () if data.on_cpu else data.results:
        trials = fastest(tuple(t for t in data.trials if t.workload == result.workload))
        times_us = {t.variant: t.time_us or inf for t in reversed(trials)}
        serving_us = times_us.get(result.variant, inf)
        refused = (t for t in reversed(trials) if t.variant in reasons)
        for trial in {t.candidate: t for t in refused}.values():
            if times_us[trial.variant] * CLEARLY < serving_us:
                yield trial, reasons[trial.variant]


def describe_refused(trial: Trial) -> str:
    return (
        f"{trial.candidate} took {formatting.microseconds(trial.time_us or 0.0)} us on "
        f"{trial.workload} in the search and was refused in the end"
    )


def refused_lines(data: ReportData) -> list[str]:
    return [f"{describe_refused(trial)}: {reason}" for trial, reason in refused_trials(data)]


def importances(data: ReportData) -> tuple[CandidateImportance, ...]:
    """Rank the parameters of every candidate that was searched, the winner's first.

    Candidates are never put together: a name may mean another thing in each.
    """
    ranked = []
    for name in data.ranking():
        found = [
            (str(workload), importance(own))
            for workload, trials in data.by_workload().items()
            if (own := [trial for trial in trials if trial.candidate == name])
        ]
        if found:
            shares = average([one for _, one in found])
            bars = [charts.Bar(key, share, formatting.percent(share)) for key, share in shares]
            title = f"Parameter importance, {name}" if data.several else "Parameter importance"
            chart = charts.bars(title, bars) if bars else None
            ranked.append(CandidateImportance(name, tuple(found), shares, chart))
    return tuple(ranked)


def importance_tables(
    data: ReportData, importance: Sequence[CandidateImportance]
) -> list[tuple[str, Markup]]:
    """Lay out the shares of each workload, a table for each candidate that has any."""
    tables = []
    for of in importance:
        if of.chart is None:
            continue
        names = [name for name, _ in of.average]
        rows: list[list[Cell | str | int]] = []
        for label, one in of.by_workload:
            shares = dict(one.shares)
            if not shares:
                rows.append([label, one.trials, Cell(one.reason, css="soft", wide=True)])
                continue
            told = (formatting.percent(shares[n]) if n in shares else "-" for n in names)
            rows.append([label, one.trials, *told])
        columns = (Column(name, numeric=True) for name in ("Trials", *names))
        label = f"Parameter importance per workload{f', {of.name}' if data.several else ''}"
        title = of.name if data.several else "Per workload"
        tables.append((title, write_table(label, ("Workload", *columns), rows)))
    return tables


def importance_unknown(data: ReportData, importance: Sequence[CandidateImportance]) -> list[str]:
    """Say of which candidates, and why, nothing is known."""
    if not importance and not data.on_cpu:
        return ["Not enough to tell: no config was tried."]
    return [
        f"{f'{of.name}: not' if data.several else 'Not'} enough to tell: "
        f"{'; '.join(f'{label}: {one.reason}' for label, one in of.by_workload)}."
        for of in importance
        if of.chart is None
    ]


def rejections(data: ReportData) -> tuple[Rejection, ...]:
    """Group the trials that are not correct by status and kind of reason.

    Finalists that failed come first, for they looked fast; then the most frequent.
    """
    groups: dict[tuple[Status, Stage, str], list[Trial]] = {}
    for trial in (*data.trials, *data.finals):
        if trial.status is not Status.CORRECT:
            first_line = (trial.reason.strip().splitlines() or [""])[0]
            kind = trial.status, trial.stage, re.sub(r"\d+(?:\.\d+)?", "#", first_line)
            groups.setdefault(kind, []).append(trial)
    found = [Rejection(tuple(trials)) for trials in groups.values()]
    return tuple(sorted(found, key=lambda r: (r.first.stage == "search", -len(r.trials))))


def fastest_configs(data: ReportData) -> tuple[tuple[Workload, tuple[Trial, ...]], ...]:
    """List the fastest configs of every workload that has any, but for finalists that failed."""
    failed = {(t.workload, t.variant) for t in data.finals if t.status is not Status.CORRECT}
    tables = (
        (workload, tuple(t for t in trials if (workload, t.variant) not in failed))
        for workload, trials in data.by_workload().items()
    )
    best = ((workload, fastest(trials, TOP_CONFIGS)) for workload, trials in tables)
    return tuple((workload, trials) for workload, trials in best if trials)


def source_diffs(data: ReportData) -> tuple[SourceDiff, ...]:
    """Compare every different tuned source with the baseline, within a total length."""
    if not data.baseline_source:
        return ()
    served: dict[str, list[str]] = {}
    for workload, source in data.tuned_sources.items():
        served.setdefault(source, []).append(workload.replace(",", " "))
    left = DIFF_LINES_IN_ALL
    found = []
    for source, workloads in served.items():
        found.append(_compare_sources(data.baseline_source, source, workloads, left))
        left -= found[-1].shown
    return tuple(found)


def code_diff(data: ReportData, workloads: Sequence[str]) -> SourceDiff | None:
    """Compare the source that serves these workloads with the baseline, without its comments."""

    def code(source: str) -> str:
        lines = source.splitlines()
        return "\n".join(line for line in lines if line.strip()[:2] not in ("", "//"))

    for workload, source in data.tuned_sources.items():
        if workload.replace(",", " ") in workloads:
            baseline = code(data.baseline_source)
            return _compare_sources(baseline, code(source), workloads, DIFF_LINES)
    return None


def _compare_sources(baseline: str, source: str, workloads: Sequence[str], most: int) -> SourceDiff:
    names = {"+": "add", "-": "remove", "@": "place"}
    # Without the two file names that it begins with.
    lines = [*difflib.unified_diff(baseline.splitlines(), source.splitlines(), lineterm="")][2:]
    kinds = [names.get(line[:1], "same") for line in lines]
    shown = min(len(lines), DIFF_LINES, most)
    pairs = groupby(zip(kinds[:shown], lines, strict=False), key=itemgetter(0))
    return SourceDiff(
        tuple(workloads),
        tuple((kind, "\n".join(line for _, line in group)) for kind, group in pairs),
        added=kinds.count("add"),
        removed=kinds.count("remove"),
        shown=shown,
        omitted=len(lines) - shown,
    )


def rejected_table(data: ReportData) -> Markup:
    """Lay out why configs were rejected, by kind of reason; nothing where none was."""

    def config(rejection: Rejection) -> Markup:
        own = f"{rejection.first.candidate}:" if data.several else ""
        return join(own, write_pairs(rejection.first.config), soft(f"({rejection.first.workload})"))

    fields: list[Field[Rejection]] = [
        Field("Status", lambda rejection: rejection.meaning),
        Field(Column("Trials", numeric=True), lambda rejection: len(rejection.trials)),
        Field(Column("Configs", numeric=True), lambda rejection: rejection.configs),
        Field(
            Column("One example of the reason", css="reason"), lambda rejection: rejection.example
        ),
        Field(Column("Its config", css="config"), config),
    ]
    return list_table("Rejected configs by reason", rejections(data)[:REASONS_SHOWN], fields)


def fastest_table(data: ReportData, workload: Workload, trials: tuple[Trial, ...]) -> Markup:
    """Lay out the fastest configs of a workload, by the parameters that vary among them."""
    baseline_us, first = data.baseline_us(workload), trials[0].config

    def number(head: str, write: Callable[[Trial], str | int | None]) -> Field[Trial]:
        def cell(trial: Trial) -> str | int:
            told = write(trial)
            return "-" if told is None else told

        return Field(Column(head, numeric=True), cell)

    def over_it(trial: Trial) -> str | None:
        if baseline_us is None or not trial.time_us:
            return None
        return formatting.ratio(baseline_us / trial.time_us)

    def parameter(name: str) -> Field[Trial]:
        def cell(trial: Trial) -> Cell:
            told, told_first = (
                format_value(config[name]) if name in config else "-"
                for config in (trial.config, first)
            )
            return Cell(told, css="differs" if told not in ("-", told_first) else "")

        return Field(Column(name, css="value"), cell)

    fields = [
        number("#", lambda trial: trials.index(trial) + 1),
        number("us", lambda trial: formatting.microseconds(trial.time_us or 0.0)),
        *([] if data.on_cpu else [number("Baseline over it", over_it)]),
        *([Field("Candidate", lambda trial: trial.candidate)] if data.several else []),
        *map(parameter, formatting.varying(trial.config for trial in trials)),
    ]
    if not data.on_cpu:
        occupancy = Column("Occupancy (limiter)", css="occupancy")
        fields += [
            number("Registers", lambda t: t.resources.registers if t.resources else None),
            Field(occupancy, lambda trial: formatting.occupancy(trial.occupancy)),
            number("Spills, bytes", lambda t: t.resources.spill_bytes if t.resources else None),
        ]
    head = "Shared, bytes" if data.dynamic_shared_bytes else "Static shared, bytes"
    fields.append(number(head, data.shared_bytes))
    return list_table(f"Fastest configs for {workload}", trials, fields)
