"""What the tables of a report hold, worked out from the records."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.model.config import Config, format_value
from tuner.model.kernel import Workload
from tuner.model.statistics import geometric_mean
from tuner.model.trial import Result, Stage, Status, Trial
from tuner.report.data import ReportData, fastest
from tuner.report.formatting import ratio, significance
from tuner.report.sections.verification import accusation

TOP_CONFIGS = 10
REASONS_SHOWN = 15
REASON_LENGTH = 400
DIFF_LINES = 1500
DIFF_LINES_IN_ALL = 6000
# A parameter that a candidate does not have.
ABSENT = "-"

MEANING: dict[Status, str] = {
    Status.CORRECT: "correct",
    Status.CONSTRAINT: "breaks a constraint",
    Status.COMPILE: "does not compile",
    Status.RESOURCE_LIMIT: "over a resource limit",
    Status.LAUNCH: "launch refused or crashed",
    Status.INCORRECT: "wrong result",
    Status.TIMEOUT: "timed out",
    Status.NOT_RECORDED: "not in the recording",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Trials that failed alike: reasons that differ in their numbers only are one kind."""

    status: Status
    stage: Stage
    trials: int
    configs: int
    example: str
    candidate: str
    config: Config
    workload: Workload

    @property
    def meaning(self) -> str:
        """The status in words, and the stage where it was not the search."""
        words = MEANING[self.status]
        return words if self.stage == "search" else f"{words}, as a finalist"


@dataclass(frozen=True, slots=True)
class TopConfig:
    """One of the fastest configs; `differs` marks the values that the first has not."""

    rank: int
    trial: Trial
    values: tuple[str, ...]
    differs: tuple[bool, ...]
    ratio: float | None
    shared_bytes: int | None


@dataclass(frozen=True, slots=True)
class TopTable:
    """The fastest configs of one workload, one column per parameter."""

    workload: Workload
    names: tuple[str, ...]
    rows: tuple[TopConfig, ...]


@dataclass(frozen=True, slots=True)
class DiffBlock:
    """Consecutive lines of a diff of one kind: `add`, `remove`, `same` or `place`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One tuned source, the workloads that it serves and its difference from the baseline."""

    workloads: tuple[str, ...]
    blocks: tuple[DiffBlock, ...]
    added: int
    removed: int
    omitted: int


def rejections(data: ReportData) -> tuple[Rejection, ...]:
    """Group the trials that are not correct by status and kind of reason.

    Finalists that failed come first, for they looked fast; then the most frequent.
    """
    groups: dict[tuple[Status, Stage, str], list[Trial]] = {}
    for trial in (*data.trials, *data.finals):
        if trial.status is not Status.CORRECT:
            kind = trial.status, trial.stage, _kind(trial.reason)
            groups.setdefault(kind, []).append(trial)
    found = [_rejection(trials) for trials in groups.values()]
    return tuple(sorted(found, key=lambda one: (one.stage == "search", -one.trials)))


def top_tables(data: ReportData) -> tuple[TopTable, ...]:
    """List the fastest configs of every workload that has any, but for finalists that failed."""
    failed = {
        (trial.workload, trial.variant)
        for trial in data.finals
        if trial.status is not Status.CORRECT
    }
    tables = []
    for workload, trials in data.by_workload().items():
        passed = tuple(t for t in trials if (workload, t.variant) not in failed)
        if best := fastest(passed, TOP_CONFIGS):
            tables.append(_top_table(data, workload, best))
    return tuple(tables)


def variants(data: ReportData) -> tuple[Variant, ...]:
    """Compare every different tuned source with the baseline, within a total length."""
    if not data.baseline_source:
        return ()
    served: dict[str, list[str]] = {}
    for workload, source in data.tuned_sources.items():
        served.setdefault(source, []).append(workload.replace(",", " "))
    left = DIFF_LINES_IN_ALL
    found = []
    for source, workloads in served.items():
        variant, used = _variant(data.baseline_source, source, workloads, min(DIFF_LINES, left))
        found.append(variant)
        left -= used
    return tuple(found)


def _kind(reason: str) -> str:
    first = reason.strip().splitlines()[0] if reason.strip() else ""
    return re.sub(r"\d+(?:\.\d+)?", "#", first)


def _rejection(trials: Sequence[Trial]) -> Rejection:
    first = trials[0]
    example = first.reason.strip() or "no reason recorded"
    if len(example) > REASON_LENGTH:
        example = example[:REASON_LENGTH].rstrip() + " …"
    configs = len({(trial.candidate, trial.config.key) for trial in trials})
    return Rejection(
        status=first.status,
        stage=first.stage,
        trials=len(trials),
        configs=configs,
        example=example,
        candidate=first.candidate,
        config=first.config,
        workload=first.workload,
    )


def _top_table(data: ReportData, workload: Workload, trials: Sequence[Trial]) -> TopTable:
    names = tuple(dict.fromkeys(name for trial in trials for name in trial.config))
    baseline_us = data.baseline_us(workload)
    texts = [tuple(_value(trial.config, name) for name in names) for trial in trials]
    rows = (
        TopConfig(
            rank=rank,
            trial=trial,
            values=values,
            differs=tuple(a not in (b, ABSENT) for a, b in zip(values, texts[0], strict=True)),
            ratio=baseline_us / trial.time_us if baseline_us and trial.time_us else None,
            shared_bytes=data.shared_bytes(trial),
        )
        for rank, (trial, values) in enumerate(zip(trials, texts, strict=True), start=1)
    )
    return TopTable(workload, names, tuple(rows))


def _value(config: Config, name: str) -> str:
    return format_value(config[name]) if name in config else ABSENT


def _variant(
    baseline: str, source: str, workloads: Sequence[str], budget: int
) -> tuple[Variant, int]:
    lines = list(
        difflib.unified_diff(
            baseline.splitlines(), source.splitlines(), "baseline", "tuned", lineterm=""
        )
    )[2:]  # without the two file names
    kinds = [_line_kind(line) for line in lines]
    shown = min(len(lines), budget)
    variant = Variant(
        workloads=tuple(workloads),
        blocks=_blocks(lines[:shown], kinds[:shown]),
        added=kinds.count("add"),
        removed=kinds.count("remove"),
        omitted=len(lines) - shown,
    )
    return variant, shown


def _line_kind(line: str) -> str:
    return {"+": "add", "-": "remove", "@": "place"}.get(line[:1], "same")


def _blocks(lines: Sequence[str], kinds: Sequence[str]) -> tuple[DiffBlock, ...]:
    blocks: list[tuple[str, list[str]]] = []
    for line, kind in zip(lines, kinds, strict=True):
        if not blocks or blocks[-1][0] != kind:
            blocks.append((kind, []))
        blocks[-1][1].append(line)
    return tuple(DiffBlock(kind, "\n".join(content)) for kind, content in blocks)


Tone = Literal["faster", "same", "slower", "none", "failed"]


# A larger speedup over the baseline is told with a warning.
BELIEVABLE = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence on the tuned workloads, one on the held-out ones, and where they come from."""

    origin: str
    headline: str
    held_out: str
    tone: Tone

    def __str__(self) -> str:
        return " ".join(part for part in (self.origin, self.headline, self.held_out) if part)


def verdict(data: ReportData) -> Verdict:
    """Judge a run by its final comparison, never by the search's own minimum.

    Where a winner failed a check, nothing is said of its speed.
    """
    if not data.results:
        return Verdict(_origin(data), _without_result(data), "", "none")
    if accused := accusation(data):
        return Verdict(_origin(data), accused, "", "failed")
    judged = data.tuned or data.results
    tone, headline = _judge(judged, "tuned" if data.tuned else "held-out")
    held_out = _held_out(data.held_out) if data.tuned and data.held_out else ""
    if data.on_cpu:
        return Verdict(_origin(data), f"On the CPU: {headline}", held_out, "same")
    headline += _isolated(judged) + _second_look(data.results)
    return Verdict(_origin(data), headline, held_out, tone)


def _origin(data: ReportData) -> str:
    date = f", {data.measured_on}" if data.measured_on else ""
    if data.on_cpu:
        return f"Run on the CPU, {data.device}{date}: no time here says anything of a GPU."
    return f"{'RECORDED on' if data.recorded else 'Measured on'} {data.device}{date}."


def _without_result(data: ReportData) -> str:
    counts = data.counts()
    total = sum(counts.values())
    if total == 0:
        return "No result: no config was tried."
    if counts[Status.CORRECT] == 0:
        return f"No result: none of {total:,} trials was correct."
    if data.finished:
        return "No result: the finalists were not compared with the baseline."
    return "No result yet: the run ended before the finalists were compared with the baseline."


def _judge(results: Sequence[Result], kind: str) -> tuple[Tone, str]:
    labels = [significance(result) for result in results]
    count, faster, slower = len(labels), labels.count("faster"), labels.count("slower")
    mean = geometric_mean([result.speedup for result in results])
    scope = f"{count} {kind} workload{'s' if count != 1 else ''}"
    average = f"geometric mean over {scope}" if count > 1 else f"on {scope}"
    if faster == slower == 0:
        return "same", (
            "No difference from the baseline: "
            f"no 95 % interval excludes 1 ({average}: {ratio(mean)})."
        )
    if 2 * faster > count and mean > 1.0:
        also = f", slower on {slower}" if slower else ""
        return "faster", (
            f"{ratio(mean)} faster than the baseline ({average}); "
            f"95 % intervals exclude 1 on {faster} of {count}{also}."
        )
    if faster and slower:
        tone: Tone = "faster" if faster > slower and mean > 1.0 else "slower"
        return tone, (
            f"Mixed: faster on {faster}, slower on {slower} of {scope}; {average}: {ratio(mean)}."
        )
    word: Tone = "faster" if faster else "slower"
    return word, f"{word.capitalize()} on {faster or slower} of {scope}; {average}: {ratio(mean)}."


def _isolated(results: Sequence[Result]) -> str:
    """Where calls overlap their neighbours, say what is left when they don't."""
    overlapping = [result for result in results if result.isolated_speedup is not None]
    if not overlapping:
        return ""
    mean = geometric_mean([result.isolated_speedup or result.speedup for result in results])
    return f" Without overlapping the calls before and after: {ratio(mean)}."


def _second_look(results: Sequence[Result]) -> str:
    beyond = [str(result.workload) for result in results if result.speedup > BELIEVABLE]
    if not beyond:
        return ""
    return (
        f" LOOK TWICE at {', '.join(beyond)}: over {BELIEVABLE}x is more often a slip in the "
        "baseline, its launch or the reference than a better kernel."
    )


def _held_out(results: Sequence[Result]) -> str:
    count = len(results)
    mean = geometric_mean([result.speedup for result in results])
    labels = [significance(result) for result in results]
    faster, slower = labels.count("faster"), labels.count("slower")
    text = f"Held-out: {ratio(mean)} over {count} workload{'s' if count != 1 else ''}, "
    text += f"faster on {faster} of {count}"
    return f"{text}, slower on {slower}." if slower else f"{text}."
