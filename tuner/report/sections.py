"""What the tables of a report hold, worked out from the records."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.kernel import Workload
from tuner.report.data import ReportData, fastest
from tuner.space import Config, format_value
from tuner.trial import Stage, Status, Trial

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
    Status.LIMIT: "over a resource limit",
    Status.LAUNCH: "launch refused or crashed",
    Status.WRONG: "wrong result",
    Status.TIMEOUT: "timed out",
    Status.MISSING: "not in the recording",
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
