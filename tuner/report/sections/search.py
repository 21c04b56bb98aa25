"""The sections on the search: its course, what decided, what was rejected, what was fastest."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from operator import itemgetter

from markupsafe import Markup

from tuner.model.config import format_value
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.statistics import PROTOCOL
from tuner.model.trial import INITIAL, LEFT_OUT, Stage, Status, Trial
from tuner.report import charts, formatting
from tuner.report.data import ReportData, fastest, stopped_early
from tuner.report.pages import draw
from tuner.search.importance import Importance, average, importance
from tuner.tuning.hopeless import Hopeless

CHARACTER = 6.4  # width of an 11 px character in a wide font
TOP_CONFIGS = 10
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
    omitted: int


def convergence(
    label: str,
    times_us: Sequence[float | None],
    ranked_only: Sequence[bool],
    baseline_us: float | None,
    begins: Sequence[tuple[int, str]] = (),
) -> Markup:
    """Draw the best time so far against the number of trials, over all trials as dots.

    `times_us` has None for a trial without a time. `ranked_only` marks those stopped early, which
    never become the best. `begins` names the candidates with the number of trials before theirs.
    """
    head = 18 if begins else 0
    best: list[tuple[int, float]] = []
    for index, (time, skip) in enumerate(zip(times_us, ranked_only, strict=True), start=1):
        if time is not None and not skip and (not best or time < best[-1][1]):
            best.append((index, time))
    baseline = [] if baseline_us is None else [baseline_us]
    low, high = 0.0, 1.0
    if known := [*baseline, *(time for time in times_us if time is not None)]:
        lowest = min(known)
        highest = max([lowest, *baseline, *(min(one, 4 * lowest) for _, one in best[:1])])
        pad = 0.08 * (highest - lowest) or 0.05 * highest
        low, high = max(lowest - pad, 0.0), highest + pad
    x = charts.Scale(0, max(len(times_us), 1), 52, 368)
    y = charts.Scale(low, high, 176 + head, 14 + head)
    free, named = 0.0, []
    for before, name in begins:
        at, width = x(before), CHARACTER * len(name)
        fits = at >= free and at + width < x.end + 12  # it does not run into the last one
        named.append((before, name, fits))
        free = at + width + 6 if fits else free
    # One point per pixel: thousands of trials stay a few kilobytes.
    pixels = {
        (round(x(index)), round(y(time)))
        for index, time in enumerate(times_us, start=1)
        if time is not None and time <= y.high
    }
    steps = [(x(index), y(time)) for index, time in best]
    corners = [(after[0], before[1]) for before, after in pairwise(steps)]
    end = [(x(len(times_us)), steps[-1][1])] if steps else []
    line = [*chain.from_iterable(zip(steps, corners, strict=False)), *steps[-1:], *end]
    summary = f"best {formatting.microseconds(best[-1][1])} us" if best else "no correct trial"
    return draw(
        "convergence",
        label=f"Convergence for {label}: {summary}",
        height=210 + head,
        x=x,
        y=y,
        x_ticks=charts.ticks(0, x.high, 4),
        y_ticks=charts.ticks(y.low, y.high, 4),
        begins=named,
        dots="".join(f"M{column} {row}h0" for column, row in sorted(pixels)),
        baseline_us=baseline_us,
        best=charts.path(line) if line else "",
        above=sum(time is not None and time > y.high for time in times_us),
    )


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


def convergences(data: ReportData) -> tuple[tuple[str, Markup], ...]:
    found = []
    for workload, trials in data.by_workload().items():
        begins: dict[str, int] = {}
        for before, trial in enumerate(trials):
            begins.setdefault(trial.candidate, before)
        label, baseline_us = str(workload), data.baseline_us(workload)
        times_us, early = [t.time_us for t in trials], [stopped_early(t) for t in trials]
        marks = [(before, name) for name, before in begins.items()] if data.several else ()
        found.append((label, convergence(label, times_us, early, baseline_us, marks)))
    return tuple(found)


def space_lines(data: ReportData) -> tuple[str, ...]:
    """Say how much of the space was left out, as slow or because a recording lacks it."""
    if data.pruned is None:
        return ("with --no-prune, configs that `prune` leaves out as slow were searched too",)
    valid, searched = (sum(getattr(one, n) for one in data.pruned) for n in ("valid", "searched"))
    counts = [one.recorded for one in data.pruned if one.recorded is not None]
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
                lines.append(_never_worked(data, f"{name} %s{of}", never, left_out))
    return tuple(lines)


def _never_worked(
    data: ReportData, of: str, never: Mapping[Value, Sequence[Trial]], left_out: int
) -> str:
    failed = [*chain.from_iterable(never.values())]
    only = replace(data, records=tuple((one, 0.0) for one in failed), finals=())
    first = rejections(only)[0].first
    reason, *_ = first.reason.splitlines() or [""]
    return (
        f"nothing worked with {of % ', '.join(map(format_value, never))}, in {len(failed)} trials "
        f"of {sum(one.seconds for one in failed):.0f} s"
        f"{f', so {left_out} configs were left out' * bool(left_out)}: {MEANING[first.status]}: "
        f"{reason[:REASON_SHORT]}"
    )


def early_end_lines(data: ReportData) -> tuple[str, ...]:
    gains = [one.expected_gain for one in data.early_ends if one.expected_gain is not None]
    trials = sum(one.trials for one in data.early_ends if one.expected_gain is not None)
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


def rejected_chart(data: ReportData) -> Markup:
    counts = Counter(data.counts())
    del counts[Status.CORRECT]
    rows = [
        charts.Bar(MEANING[status], count, f"{count:,} of {len(data.records):,} trials")
        for status, count in counts.most_common()
        if count
    ]
    return charts.bars("Rejected trials by status", rows)


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
    return tuple(sorted(found, key=lambda one: (one.first.stage == "search", -len(one.trials))))


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
    names = {"+": "add", "-": "remove", "@": "place"}
    baseline = data.baseline_source.splitlines()
    found = []
    for source, workloads in served.items():
        # Without the two file names that it begins with.
        lines = [*difflib.unified_diff(baseline, source.splitlines(), lineterm="")][2:]
        kinds = [names.get(line[:1], "same") for line in lines]
        shown = min(len(lines), DIFF_LINES, left)
        pairs = groupby(zip(kinds[:shown], lines, strict=False), key=itemgetter(0))
        found.append(
            SourceDiff(
                tuple(workloads),
                tuple((kind, "\n".join(line for _, line in group)) for kind, group in pairs),
                added=kinds.count("add"),
                removed=kinds.count("remove"),
                omitted=len(lines) - shown,
            )
        )
        left -= shown
    return tuple(found)
